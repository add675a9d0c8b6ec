"""Scripts in which bash and a careless reader disagree about variables, functions or the end of a line.

Each script deletes `victim` or reads a file beside the project in real bash, so `strict` must not allow it.
"""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from corral import SandboxConfig
from corral.guard.evaluate import vet
from corral.model.call import Call, Decision

if TYPE_CHECKING:
    from pathlib import Path

STRICT = SandboxConfig(project_root="/usr/share")
WORKSPACE = SandboxConfig(project_root="/usr/share", profile="workspace")
SECRET = "the secret"
PROVEN = {
    "a variable that bash sets itself": [
        "SECONDS=p/q; cat $SECONDS/../../outside/secret.txt",
        "mkdir -p 0; EUID=p/q\nmkdir -p $EUID; cat $EUID/../../outside/secret.txt",
        "GROUPS=ls; d=p/q; mkdir -p $GROUPS; cat $GROUPS/../../outside/secret.txt",
        "PIPESTATUS=(p/q); true; cat $PIPESTATUS/../../outside/secret.txt",
        "PPID=p/q\nmkdir -p $PPID; cat $PPID/../../outside/secret.txt",
        "EPOCHSECONDS=p/q; mkdir -p $EPOCHSECONDS; cat $EPOCHSECONDS/../../outside/secret.txt",
        "_=ls\n: rm\n$_ -rf victim",
        "read SECONDS <<<x; cat $SECONDS/../../outside/secret.txt",
        "declare SECONDS=p/q; cat $SECONDS/../../outside/secret.txt",
        "DIRSTACK=ls; cd src; cat $DIRSTACK/../../outside/secret.txt",
        "OPTIND='a[$(rm -rf victim)]'",
        "readonly x=rm; x=ls true; $x -rf victim",
        "x=rm; readonly x\nread x <<< ls; $x -rf victim",
        "BASH_VERSINFO=p/q\nmkdir -p $BASH_VERSINFO; cat $BASH_VERSINFO/../../outside/secret.txt",
        "BASH_REMATCH=(ls); [[ rm =~ rm ]] && $BASH_REMATCH -rf victim",
        "OLDPWD=src; mkdir -p x; cd x; cd ..; cat $OLDPWD/../../outside/secret.txt",
    ],
    "a function that bash calls itself": [
        "command_not_found_handle() { $x; }; x='rm -rf victim'; nosuch; x=true",
        "function command_not_found_handle { $x; }; x='rm -rf victim'; nosuch; x=true",
        "(command_not_found_handle() { rm -rf victim; }; nosuch)",
        "echo $(command_not_found_handle() { rm -rf victim; }; nosuch)",
        "true | { command_not_found_handle() { rm -rf victim; }; nosuch; }",
        "{ command_not_found_handle() { rm -rf victim; }; nosuch; } & wait",
        "x=ls; command_not_found_handle() { $x -rf victim; }; command_not_found_handle; x=rm; nosuch; x=ls",
        'command_not_found_handle() { shift; "$@"; }; nosuch rm -rf victim',
        "command_not_found_handle() { rm -rf $2; }; nosuch victim",
        "f() { command_not_found_handle() { $x; }; }; f; x='rm -rf victim'; nosuch; x=true",
        "if true; then command_not_found_handle() { $x; }; fi; x='rm -rf victim'; nosuch; x=true",
        "command_not_found_handle() { cat ../outside/secret.txt; }; mkdir x; cd x; cd ..; nosuch",
        "mkdir x; cd x; command_not_found_handle() { cat ../outside/secret.txt; }; cd ..; nosuch; cd x",
        "x=true; f() { $x; }; f; command_not_found_handle() { f; }; x='rm -rf victim'; nosuch; x=true",
    ],
    "a command that does not leave the shell": [
        "exit() { x=rm; }; x=ls; true && exit; $x -rf victim",
        "x=ls; true && { x=rm; return; }; $x -rf victim",
        "x=ls; true && { x=rm; exit < nosuch; }; $x -rf victim",
        "x=ls; true && { x=rm; exit --help; }; $x -rf victim",
        "f() { x=ls; true && { x=rm; return < nosuch; }; $x -rf victim; }; f",
        "f() { x=ls; true && { x=rm; return --help; }; $x -rf victim; }; f",
        "function exit { x=rm; }; x=ls; false || exit 1; $x -rf victim",
        "x=ls; true && { x=rm; exit | true; }; $x -rf victim",
        "x=ls; true && { x=rm; $(exit); }; $x -rf victim",
        "x=ls; e=--help; true && { x=rm; exit $e; }; $x -rf victim",
        "x=ls; true && { x=rm; return 0; }; $x -rf victim",
        "x=ls; true && { x=rm; return $?; }; $x -rf victim",
        "x=ls; f() { :; }; true && { x=rm; f; return; }; $x -rf victim",
        "exit() { x=rm; }; x=ls; true && { :; exit; }; $x -rf victim",
        "x=ls; true && { x=rm; builtin return; }; $x -rf victim",
        "x=ls; true && { x=rm; return; } 2>/dev/null; $x -rf victim",
    ],
    "a local variable that a function uncovers": [
        "f() { local x=ls; g; $x -rf victim; }; g() { unset x; }; x=rm; f",
        "f() { local x=ls; declare -g x=rm; }; x=ls; f; $x -rf victim",
        "f() { local x=rm; declare x; $x -rf victim; }; f",
        "x=rm; f() { local -I x; ${x:-ls} -rf victim; }; f",
        "x=rm; f() { local x=ls; g; }; g() { declare -g x; unset x; $x -rf victim; }; f",
        "x=rm; f() { unset x; $x -rf victim; }; x=ls f",
        "f() { local x=ls; g; x=rm; }; g() { unset x; }; x=ls; f; $x -rf victim",
        "x=rm; f() { local x=ls; g; $x -rf victim; }; g() { builtin unset x; }; f",
        "x=rm; f() { local x=ls; eval 'g'; $x -rf victim; }; g() { n=x; unset $n; }; f",
        "x=ls; f() { local x=ls; typeset -g x=rm; }; f; $x -rf victim",
        "x=ls; f() { local x=ls; builtin declare -g x=rm; }; f; $x -rf victim",
        "f() { if false; then x=ls; local x=ls; else x=rm; local x=ls; fi; }; f; $x -rf victim",
        'f() { local x=rm; export x; local x; "${x:-ls}" -rf victim; }; f',
        "shopt -s localvar_unset; x=rm; f() { local x=ls; g; ${x:-rm} -rf victim; }; g() { unset x; }; f",
        "f() { declare -gx x=rm; }; g() { local x=ls; f; }; x=ls; g; $x -rf victim",
        "f() { local -g x=rm; declare -g x=rm; }; g() { local x=ls; f; }; x=ls; g; $x -rf victim",
    ],
    "an unset that unsets nothing": [
        "x=rm; unset -f x; $x -rf victim",
        "x=rm; unset -n x; $x -rf victim",
        "x=rm; unset -f x; ${x:-ls} -rf victim",
        "x=rm; unset -fv x; ${x:-ls} -rf victim",
        "x=rm; unset -f -- x; ${x:-ls} -rf victim",
        "x=rm; builtin unset -f x; ${x:-ls} -rf victim",
        "x=rm; o=-f; unset $o x; ${x:-ls} -rf victim",
        "x=rm; unset -f x y; ${x:-ls} -rf victim",
        "readonly x=rm; unset x; ${x:-ls} -rf victim",
        "x=rm; unset() { :; }; unset x; ${x:-ls} -rf victim",
        "ls() { rm -rf victim; }; unset -v ls; ls",
        "ls() { rm -rf victim; }; ls=1; unset ls; ls",
        "x=rm; unset x=; ${x:-ls} -rf victim",
        'a=(ls rm); unset a[0]; "${a[@]}" -rf victim',
        "a=(ls rm); unset 'a[0]'; \"${a[@]}\" -rf victim",
        "x=rm; f() { :; }; command unset -f x; $x -rf victim",
    ],
    "positional parameters": [
        "set -- rm; shift 2; $1 -rf victim",
        "set -- rm ls; shift 3; $1 -rf victim",
        'set -- a; set rm -- ls; "$1" -rf victim',
        'set -- r a a a a a a a a ls; m=m; "$1m" -rf victim',
        "set -- rm; set -o nosuch -- ls; $1 -rf victim",
        "set -- rm ls; ./shift; $1 -rf victim",
        "set -- rm ls; shift -1; $1 -rf victim",
        "set -- rm ls; shift < nosuch; $1 -rf victim",
        "BASH_ARGV0=rm; set -- ls; ${00} -rf victim",
        'set -- ls; f() { "$@"; }; set - rm -rf victim; f "$@"',
        "set -- rm ls; true && shift() { :; }; shift; $1 -rf victim",
        "f() { shift 2; ${1:-ls} -rf victim; }; f rm",
        "set -- rm; set -- ls | cat; $1 -rf victim",
        "set -- rm; set +Z -- ls; $1 -rf victim",
        "set -- ls; set - -- rm; ${2} -rf victim",
        "set -- rm; set --help -- ls; $1 -rf victim",
    ],
    "an assignment before a declaration": [
        "x=ls; x=rm export x; $x -rf victim",
        "x=ls; x=rm readonly x; $x -rf victim",
        "x=ls; x=rm typeset -x x; $x -rf victim",
        "x=ls; x=rm builtin export x; $x -rf victim",
        "x=ls; f() { export x; }; x=rm f; $x -rf victim",
        "x=ls; f() { readonly x; }; x=rm f; $x -rf victim",
        "x=ls; y=ls x=rm export x y; $x -rf victim",
        "x=ls; y=rm x=$y export x; y=rm; y=rm x=$y export x; $x -rf victim",
        "x=ls; x=rm \\export x; $x -rf victim",
        "x=ls; x=rm command builtin export x; $x -rf victim",
        "x=ls; x=rm readonly -p x; x=rm export -- x; $x -rf victim",
        "x=ls\nx=rm y=$x\n$y -rf victim",
        "x=ls; x=rm y=$x; $y -rf victim",
        "d=p/q; mkdir -p 0; d=0 export d; cat $d/../../outside/secret.txt",
        "x=ls\nx=rm y=$x z=$y\necho $z\n$z -rf victim",
        "x=ls; x=rm time export x; x=rm export x; $x -rf victim",
    ],
    "a redirect that fails": [
        "x=ls; x=rm < a.txt; $x -rf victim",
        "x=ls; x=rm > /dev/null; $x -rf victim",
        "f() { x=ls; }; x=rm; f < nosuch; $x -rf victim",
        "x=rm; { x=ls; } < nosuch; $x -rf victim",
        "x=rm; export x=ls <&9; $x -rf victim",
        "x=rm; read x <&9 <<< ls; $x -rf victim",
        "x=rm; for x in ls; do :; done < nosuch; ${x:-ls} -rf victim",
        "x=rm; if x=ls; then :; fi < nosuch; $x -rf victim",
        "f() { $x; }; x=true; f; x='rm -rf victim'; mapfile -C f -c 1 a < a.txt; x=true",
        "f() { $x; }; x='rm -rf victim'; compgen -F f x; x=true",
        "x=ls; if x=rm; then :; fi; $x -rf victim",
        "x=rm; x=ls & wait; $x -rf victim",
        "x=rm; : $(x=ls); $x -rf victim",
        "x=rm; true || x=ls; $x -rf victim",
        "x=rm; coproc x=ls; wait; $x -rf victim",
        "x=rm; true && export() { :; }; export x=ls; $x -rf victim",
    ],
    "an assignment by arithmetic": [
        "mkdir -p p/q 0; d=p/q; let d=0; cat $d/../../outside/secret.txt",
        "mkdir -p p/q 0; d=p/q; let 1 d=0; cat $d/../../outside/secret.txt",
        "mkdir -p p/q 0; d=p/q; [[ 'd=0' -eq 0 ]]; cat $d/../../outside/secret.txt",
        "mkdir -p p/q 0; d=p/q; : ${a[d=0]}; cat $d/../../outside/secret.txt",
        "mkdir -p p/q 0; d=p/q; declare -i y=d=0; cat $d/../../outside/secret.txt",
        "mkdir -p p/q 0; d=p/q; y='d=0'; let y; cat $d/../../outside/secret.txt",
        "mkdir -p p/q 0; d=p/q; y=d=0; declare -i z; z=y; cat $d/../../outside/secret.txt",
        "mkdir -p p/q 0; d=p/q; d=0; d=p/q; for ((i=0;i<1;i++,d=0)); do :; done; cat $d/../../outside/secret.txt",
        "mkdir -p p/q 0; d=p/q; (( d\\\n= 0 )); cat $d/../../outside/secret.txt",
        "mkdir -p p/q 0; d=p/q; e='=0'; ((d $e)); cat $d/../../outside/secret.txt",
        "mkdir -p p/q 0; d=p/q; ((x=d=0)); cat $d/../../outside/secret.txt",
        "mkdir -p p/q 0; d=p/q; declare -i y; for y in d=0; do :; done; cat $d/../../outside/secret.txt",
        "mkdir -p p/q 0; d=p/q; set -- d=0; (($1)); cat $d/../../outside/secret.txt",
        "mkdir -p p/q 0; d=p/q; printf -v y d=0; ((y)); cat $d/../../outside/secret.txt",
        "mkdir -p p/q 0; d=p/q; a=(1); unset 'a[d=0]'; cat $d/../../outside/secret.txt",
        "mkdir -p p/q 0; d=p/q; a=(1); [ -v 'a[d=0]' ]; cat $d/../../outside/secret.txt",
        "mkdir -p p/q 0; d=p/q; declare -a a=([d=0]=x); cat $d/../../outside/secret.txt",
        "mkdir -p p/q 0; d=p/q; a=(1); : ${a[d=0]:=x}; cat $d/../../outside/secret.txt",
        'mkdir -p p/q 0; d=p/q; : "$((d=0))"; cat $d/../../outside/secret.txt',
        "mkdir -p p/q 0; d=p/q; case $((d=0)) in *) :;; esac; cat $d/../../outside/secret.txt",
        "mkdir -p p/q 0; d=p/q; OPTIND=d=0; cat $d/../../outside/secret.txt",
        "mkdir -p p/q 0; d=p/q; if ((d=0)); then :; fi; cat $d/../../outside/secret.txt",
        "mkdir -p p/q 0; d=p/q; (( ++y )); (( y += d = 0 )); cat $d/../../outside/secret.txt",
        "mkdir -p p/q 0; d=p/q; y=d=0; local -i z=y; typeset -i z=y; cat $d/../../outside/secret.txt",
        "mkdir -p p/q 0; d=p/q; y=$'d=0'; ((y)); cat $d/../../outside/secret.txt",
        "mkdir -p p/q 0; d=p/q; y=d; y+==0; ((y)); cat $d/../../outside/secret.txt",
        "mkdir -p p/q 0; d=p/q; declare -i d=0; cat $d/../../outside/secret.txt",
        "mkdir -p p/q 0; d=p/q; y='d=0'; ((a[y])); cat $d/../../outside/secret.txt",
        "mkdir -p p/q 0; d=p/q; coproc d { :; }; d=0; cat $d/../../outside/secret.txt",
        "mkdir -p p/q 0; d=p/q; command let d=0; cat $d/../../outside/secret.txt",
        "mkdir -p p/q 0; d=p/q; let 'y=1,d=0'; cat $d/../../outside/secret.txt",
        "mkdir -p p/q 0; d=p/q; ((d=0)) & wait; d=0; cat $d/../../outside/secret.txt",
        "let IFS=0; x=rm0-rf0victim; $x",
        "[[ IFS=0 -eq 0 ]]; x=rm0-rf0victim; $x",
        "while [ -e victim ]; do y=rm:-rf:victim; $y; read IFS <<< :; done 2>/dev/null",
        "for i in 1 2 3 4 5 6 7 8 9 10; do y=rm0-rf0victim; $y; q=IFS=0; ((q)); done 2>/dev/null",
        "mkdir -p p/q 0; d=p/q; for i in 1 2 3 4 5 6 7 8 9 10; do cat $d/../../outside/secret.txt; y=d=0; ((y)); done",
        "mkdir -p p/q 10; d=p/q; : {d}<<<x; cat $d/../../outside/secret.txt",
        "mkdir -p p/q 10; d=p/q; : {d}>|a.txt; cat $d/../../outside/secret.txt",
        "mkdir -p p/q 10; d=p/q; while false; do :; done {d}<a.txt; cat $d/../../outside/secret.txt",
    ],
    "a declaration by another builtin": [
        "command declare -l x; x=RM; $x -rf victim",
        "\\declare -l x; x=RM; $x -rf victim",
        "f() { command local -l x; x=RM; $x -rf victim; }; f",
        "w=ls; builtin typeset -n z=w; z=rm; $w -rf victim",
        "command command declare -l x; x=RM; $x -rf victim",
        "builtin command declare -l x; x=RM; $x -rf victim",
        "command export x=rm; x=ls; command export x=rm; $x -rf victim",
        "x=rm; export x=ls < nosuch; $x -rf victim",
        "x=rm; export -Z x=ls; $x -rf victim",
        "x=rm; declare -F x=ls; $x -rf victim",
        "x=rm; declare 1a=2 x=ls; x=rm; declare --help x=ls; $x -rf victim",
        "x=rm; x=ls; declare x+=x; x=r; declare x+=m; $x -rf victim",
        "time command declare -l x; x=RM; $x -rf victim",
        "o=-l; declare $o x; x=RM; $x -rf victim",
        "command declare -l y x; x=RM; $x -rf victim",
        "declare -al x; x=RM; $x -rf victim",
    ],
    "an array with a compound value": [
        "declare -a a='(rm)'; $a -rf victim",
        "a=(); declare a='(rm)'; $a -rf victim",
        "v='(rm)'; declare -a a=$v; $a -rf victim",
        "declare -A a='([0]=rm)'; $a -rf victim",
        "builtin typeset -a 'a=(rm)'; $a -rf victim",
        "a=(ls rm); ${a[01]} -rf victim",
        "a=([0]=ls [0]=rm); $a -rf victim",
        'declare -A m; m=(echo rm); "${m[@]}" -rf victim',
        'f() { local -A m=(echo rm); "${m[@]}" -rf victim; }; f',
        "a=(ls); a[0]=rm; $a -rf victim",
        'a=(echo x); a=(); a+=rm; "${a[@]}" -rf victim',
        "a=(ls); read -a a <<< rm; $a -rf victim",
        "a=(ls); printf -v a rm; $a -rf victim",
        "x=ls; x[0]=rm; $x -rf victim",
        "x=ls; declare 'x[0]=rm'; $x -rf victim",
        'a=(ls); for a in rm; do :; done; "${a[0]}" -rf victim',
    ],
    "a default for an indirect name": [
        "y=; x=y; : ${!x:=rm}; ${y:-ls} -rf victim",
        "y=; x=y; : ${!x=rm}; unset y; : ${!x=rm}; ${y:-ls} -rf victim",
        "y=; x=y; z=${!x:=rm}; ${y:-ls} -rf victim",
        "y=; x=y; : ${z:-${!x:=rm}}; ${y:-ls} -rf victim",
        "y=; x=y; echo ${!x:=rm} > /dev/null; ${y:-ls} -rf victim",
        "y=; x=y; for i in ${!x:=rm}; do :; done; ${y:-ls} -rf victim",
        "y=; f() { : ${!1:=rm}; }; f y; ${y:-ls} -rf victim",
        "IFS=; x=IFS; : ${!x:=:}; z=rm:-rf:victim; $z",
        "y=; x=y; : > ${!x:=rm}; ${y:-ls} -rf victim",
        "y=; x=y; z=1; : ${z:+${!x:=rm}}; ${y:-ls} -rf victim",
        'x=; : "${x:=rm}"; ${x:-ls} -rf victim',
        "x=; y=${x:=rm}; ${x:-ls} -rf victim",
        "x=; : ${x[0]:=rm}; ${x:-ls} -rf victim",
        "x=; : > ${x:=rm}; ${x:-ls} -rf victim",
        "mkdir -p p/q 0; d=; : $((${d:=0})); cat ${d:-p/q}/../../outside/secret.txt",
        "mkdir -p p/q 0; d=; s=a; : ${s:${d:=0}}; cat ${d:-p/q}/../../outside/secret.txt",
    ],
    "an extended pattern in an expansion": [
        "shopt -s extglob; x=rmz; ${x%@(z)} -rf victim",
        "shopt -s extglob; x=rmzz; ${x%%+(z)} -rf victim",
        "shopt -s extglob\nx=zrm; ${x#?(z)} -rf victim; ${x##?(z)} -rf victim",
        'shopt -s extglob\nx=rmz; "${x%@(z|y)}" -rf victim',
        'shopt -s extglob\nx=rmz; "${x%@(z)}" -rf victim',
        "shopt -s extglob\nx=zzrm; ${x##*(z)} -rf victim",
        "p='@(z)'; shopt -s extglob\nx=rmz; ${x%${p}} -rf victim",
        "x=rmz; ${x%\\z} -rf victim",
        "x=rmz; ${x%?} -rf victim",
        "HOME=z; x=rmz; ${x%~} -rf victim",
        "x=rmz; ${x/z} -rf victim",
        "shopt -s extglob\nset -- rmz; ${1%@(z)} -rf victim",
        "set -- rmz; ${1%z} -rf victim",
        "x='rm z'; ${x% z} -rf victim",
        "x=rmz; ${x%$(echo z)} -rf victim",
        "x=rmz; ${x%\nz} -rf victim; x=$'rm\nz'; ${x%\nz} -rf victim",
    ],
    "a default for a special variable": [
        "unset PS4; : ${PS4:='$(rm -rf victim)'}; set -x; :",
        "PS4=; : ${PS4:='$(rm -rf victim)'}; set -x; :",
        "unset PS4; : ${PS4='$(rm -rf victim)'}; set -x; :",
        "unset PS4; [[ ${PS4:='$(rm -rf victim)'} ]]; set -x; :",
        "set -a; : ${TAR_OPTIONS:=--checkpoint=1 --checkpoint-action=exec='rm\\ -rf\\ victim'}; tar cf a.tar a.txt src",
        "BASH_CMDS[ls]=; : ${BASH_CMDS[ls]:=/bin/rm}; ls -rf victim",
        "export BASH_ENV; echo 'rm -rf victim' > e; : ${BASH_ENV:=./e}; bash src/nosuch; printf 'true\n' > t.sh; bash t.sh",
        "mkdir b; printf '#!/bin/sh\\nrm -rf victim' > b/ls; chmod +x b/ls; unset PATH; : ${PATH:=./b}; ls",
        "IFS=; : ${IFS:=:}; x=rm:-rf:victim; $x",
        "unset IFS; : ${IFS=:}; x=rm:-rf:victim; $x",
        "read -r PS4 <<< '$(rm -rf victim)'; set -x; :",
        "declare PS4='$(rm -rf victim)'; set -x; :",
        "command export PS4='$(rm -rf victim)'; set -x; :",
        "PS4+='$(rm -rf victim)'; set -x; :",
        "PS4=('$(rm -rf victim)'); set -x; :",
        "export 'PS4=$(rm -rf victim)'; set -x; :",
    ],
    "an error that ends the line": [
        "x=rm\nUID=1; x=ls\n$x -rf victim",
        "x=rm; ((y=1/0)); x=ls; $x; x=rm; echo $((1/0)); x=ls\n$x -rf victim",
        "shopt -s failglob\nx=rm; echo nosuch*; x=ls\n$x -rf victim",
        "x=rm; : ${x:0:-9}; x=ls\n$x -rf victim",
        "x=rm; a=(1); : ${a[-9]}; a[-9]=1; x=ls\n$x -rf victim",
        "f() { x=rm; : $((1/0)); x=ls; }\nf\n$x -rf victim",
        "x=rm; : ${!1z}; : ${x!}; x=ls\n$x -rf victim",
        "n=08; x=rm; : $((n)); x=ls\n$x -rf victim",
        "x=rm; cat $((1/0)); x=ls\n$x -rf victim",
        "x=rm; case $((1/0)) in *) ;; esac; x=ls\n$x -rf victim",
        "x=rm; : > $((1/0)); x=ls\n$x -rf victim",
        "x=rm; : $((1%0)); x=ls\n$x -rf victim",
        "x=rm; : ${y:-$((1/0))}; x=ls\n$x -rf victim",
        "x=rm; { { : $((1/0)); }; x=ls; }\n$x -rf victim",
        "x=rm; : $((1/0)) || x=ls; x=ls\n$x -rf victim",
        "x=rm; : $((1+)); x=ls\n$x -rf victim",
        "x=rm; : $((9#9)); x=ls\n$x -rf victim",
        "x=rm; : $((x x)); x=ls\n$x -rf victim",
        "x=rm; : $(( * )); x=ls\n$x -rf victim",
        "x=rm; readonly r=1; r=2 true; x=ls; x=rm; r=2; x=ls\n$x -rf victim",
        "x=rm; r=$((1/0)) :; x=ls\n$x -rf victim",
        "x=rm; a=($((1/0))); x=ls\n$x -rf victim",
        "x=rm; shopt -s failglob; : q*; x=ls\n$x -rf victim",
        "x=rm; a=(); : ${#a[-1]}; x=ls\n$x -rf victim",
    ],
    "a loop whose next round differs": [
        "for i in {1..9}; do f; f() { rm -rf victim; }; done",
        "y=ls; f() { y=ls; }; while [ -e victim ]; do f; $y -rf victim; f() { y=rm; }; done",
        "cd src; for i in {1..9}; do cat ../outside/secret.txt; \\cd ..; done",
        "cd src; for i in {1..9}; do cat ../outside/secret.txt; $'cd' ..; done",
        "cd src; for i in {1..9}; do cat ../outside/secret.txt; {cd,..}; done",
        "for i in {1..9}; do y=rm:-rf:victim; $y; read IFS <<< :; done",
        "d=p/q; for i in {1..9}; do cat $d/../../outside/secret.txt; y=d=0; ((y)); done",
    ],
    "a line that the grammar joins to the next": [
        "ls\n\\\nfind victim -delete",
        "x=ls\nx=r\\\nm\n$x -rf victim",
        "x=ls\nread x <<<r\\\nm\n$x -rf victim",
        "f() { cat $d/../../outside/secret.txt; }\nd=p/q; f\nd=0\n\\f",
        "export x=1\n\\\nfind victim -delete",
        "ls > o\n\\\nfind victim -delete",
        "{ ls\n\\\nfind victim -delete; }",
    ],
    "an option that the builtin does not have": [
        "x=rm; readonly -xr x=ls; $x -rf victim",
        "x=rm; readonly +x x\nx=ls\n$x -rf victim",
        "x=rm; export -ga x=ls; $x -rf victim",
        "x=rm; command readonly -r x=ls; $x -rf victim",
        "f() { x=rm; x=ls declare x''; }; f; $x -rf victim",
    ],
    "a translated string in a word": [
        'find victim $""-delete',
        'find victim -$""delete',
        'cat $""../outside/secret.txt',
    ],
    "an assignment behind time": [
        "x=ls; time x=rm; $x -rf victim",
        "x=ls; time ! x=rm; $x -rf victim",
        "x=ls; time x[0]=rm; $x -rf victim",
    ],
}
ALLOWED = {
    "arithmetic on one line": "n=4\nd=src; m=$((n+1))\ncat $d/a.c",
    "a local variable": "f() { local d=src; cat $d/a.c; }; f",
    "an exported variable": "export d=src; cat $d/a.c",
    "a counter": "i=0; ((i++)); d=src; cat $d/a$i.c",
    "a loop with a counter": "d=src; for ((i=0; i<3; i++)); do cat $d/$i.c; done",
    "a comparison": 'n=3; d=src; [[ "$d" == src && $n -eq 3 ]] && cat $d/a.c',
    "options of set": "set -euo pipefail; set -- src; cat $1/a.c",
    "a default": ": ${EDITOR:=cat}; d=src; cat ${d:-x}/a.c",
    "a separator for one command": "IFS=, read -r a b <<< x,y; d=src; cat $d/a.c",
    "an early exit": "d=src; [ -f x ] || { d=x; exit 1; }; cat $d/a.c",
    "a function that nobody calls": "f() { ls; }; ls",
    "a redirect to the null device": "d=src; export e=1 2>/dev/null; cat $d/a.c",
}


@pytest.fixture
def project(tmp_path: Path) -> str:
    """Create a project, and a secret file beside it."""
    for folder in ("outside", "project/victim", "project/src", "project/p/q", "project/0"):
        os.makedirs(tmp_path / folder)
    for name, text in (
        ("outside/secret.txt", SECRET),
        ("project/victim/f", ""),
        ("project/a.txt", "x\n"),
        ("project/src/a.c", ""),
    ):
        (tmp_path / name).write_text(text)
    return str(tmp_path / "project")


@pytest.mark.parametrize(
    "script", [pytest.param(s, id=f"{name}: {s}") for name, found in PROVEN.items() for s in found]
)
def test_script_that_works_in_bash_is_refused(script: str, project: str) -> None:
    bash = ["/bin/bash", "--noprofile", "--norc", "-c", script]
    env = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        bash, cwd=project, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=20, check=False
    )
    assert SECRET.encode() in done.stdout or not os.path.exists(f"{project}/victim/f")
    assert not vet(Call(script, shell=True), STRICT).allowed


@pytest.mark.parametrize("script", [pytest.param(s, id=name) for name, s in ALLOWED.items()])
def test_harmless_neighbour_is_allowed(script: str) -> None:
    assert vet(Call(script, shell=True), STRICT).allowed


@pytest.mark.parametrize(
    "text", ['unset x; rm -rf "${x:-/srv}"', "unset -- x; rm -rf ${x:-/srv}", "unset x; rm -rf $x/"]
)
def test_variable_that_was_unset_is_empty(text: str) -> None:
    assert vet(Call(text, shell=True), WORKSPACE).decision is Decision.DENY
