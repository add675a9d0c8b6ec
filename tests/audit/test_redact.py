"""Tests of redaction: harmless text is kept, every planted secret is removed, and hostile text does not slow it down."""

import shlex
import string
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.audit.redact import MAX_SPANS, redact, redact_words
from corral.audit.secret_patterns import SHAPES, SHELL_QUOTES, may_hold_secret, secrets_of

WORD = string.ascii_letters + string.digits


def secret_of(alphabet: str, least: int, needed: str) -> st.SearchStrategy[str]:
    body = st.text(alphabet, min_size=least, max_size=least + 20)
    return body if not needed else st.tuples(body, st.sampled_from(needed), body).map("".join)


SHAPED = st.one_of(
    [
        st.tuples(st.sampled_from(heads), secret_of(alphabet, least, needed)).map("".join)
        for _, heads, alphabet, least, needed in SHAPES
    ]
)
PASSWORD = st.text(WORD + "!#%+,./:@^_~-", min_size=8, max_size=30).filter(lambda s: s[0] in WORD and s[-1] in WORD)


@pytest.mark.parametrize(
    "text",
    [
        "git show 3f786850e387550fdabc836ed0a9c1b5c6d4e8f1",
        "git log --author=token --since=yesterday -- src/auth/passwords.py",
        "git checkout -b task-sk-learn-integration-of-the-new-model",
        "sha256sum dist/corral-0.1.0-py3-none-any.whl # e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "python train.py --max-tokens=4096 --tokenizer=gpt2 --num_tokens 512",
        "pytest tests/test_token.py::test_secret_is_kept -k 'password or token'",
        "cat src/secret/token.py:12",
        "kubectl get secret my-app -o yaml",
        "docker login --password-stdin < token.txt",
        "docker run -u 1000:1000 -p 8080:80 image",
        "export GITHUB_TOKEN=$OTHER_TOKEN PASSWORD=${PASSWORD} X_SECRET=$(pass show x)",
        'curl -H "Authorization: Bearer $TOKEN" https://example.com/',
        "git clone ssh://git@example.com/a/b.git && git clone https://example.com/@scope/pkg",
        "PASSWORD_FILE=/run/pw ./serve --token-file=/run/token --secret-name=db",
        "python -c 'token = get_token(); password = os.environ[\"P\"]'",
        "if token == expected: pass",
        "npm run token:refresh && npm run auth:login",
        "ls /home/me/passwords /etc/passwd",
        "sort --key=2 -k1,1 data.csv",
        "echo 'the bearer of bad news'",
        "ssh -i id_rsa -p 22 host && mkdir -p a/b && sshpass",
        "cd /work && PWD=/x OLDPWD=/y pwd",
        "uuidgen 123e4567-e89b-12d3-a456-426614174000",
        "pip install 'sk-video==1.0' scikit-learn",
        "gh auth login --with-token < x",
    ],
)
def test_harmless_text_is_unchanged(text: str) -> None:
    assert redact(text) == text
    words = text.split()
    assert redact_words(words) == words


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("aws configure set aws_secret_access_key wJalr/K7MDENG ls", "aws configure set aws_secret_access_key [redacted] ls"),
        ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG aws s3 ls", "AWS_SECRET_ACCESS_KEY=[redacted] aws s3 ls"),
        ("curl -u admin:hunter2 https://h/", "curl -u admin:[redacted] https://h/"),
        ("curl -uadmin:hunter2 https://h/", "curl -uadmin:[redacted] https://h/"),
        ("curl --user 'admin:hunter 2' https://h/", "curl --user 'admin:[redacted]' https://h/"),
        ("git clone https://me:hunter2@h/r.git x", "git clone https://me:[redacted]@h/r.git x"),
        ("git clone https://0123456789abcdefghij@h/r", "git clone https://[redacted]@h/r"),
        ("curl -H 'Authorization: Basic YWRtaW46' h", "curl -H 'Authorization: Basic [redacted]' h"),
        ('curl -H "Authorization: Bearer abc" h', 'curl -H "Authorization: Bearer [redacted]" h'),
        ('curl -H "X-Api-Key: abcdef123456" h', 'curl -H "X-Api-Key: [redacted]" h'),
        ("curl -H 'Cookie: a=b; session=1' h", "curl -H 'Cookie: [redacted]' h"),
        ("""curl -d '{"user": "me", "password": "a b"}' h""", """curl -d '{"user": "me", "password": [redacted]}' h"""),
        ('curl -d "{\\"password\\": \\"a b\\"}" h', 'curl -d "{\\"password\\": [redacted]}" h'),
        ("curl -d 'user=me&password=a&x=1' h", "curl -d 'user=me&password=[redacted]&x=1' h"),
        ("DB_PASS='a b'c\"d e\" ./run --now", "DB_PASS=[redacted] ./run --now"),
        ("bash -c \"export DB_PWD='a b'; ls\"", "bash -c \"export DB_PWD=[redacted]; ls\""),
        ("tool --password 'a b' --user me", "tool --password [redacted] --user me"),
        ("tool --password=a --api-key=b --user=me", "tool --password=[redacted] --api-key=[redacted] --user=me"),
        ("tool --password\thunter2\tnow", "tool --password\t[redacted]\tnow"),
        ("--token\nhunter2", "--token\n[redacted]"),
        ("tool --password \\\n hunter2", "tool --password \\\n [redacted]"),
        ("tool --password\\\n hunter2", "tool --password\\\n [redacted]"),
        ("TOKEN+=hunter2 x", "TOKEN+=[redacted] x"),
        ("curl --user=admin:hunter2 h", "curl --user=admin:[redacted] h"),
        ("ghp_0123456789… is outside", "[redacted:github]… is outside"),
        ("sshpass -p hunter2 ssh -p 22 h", "sshpass -p [redacted] ssh -p 22 h"),
        ("mysql -u root -phunter2 db", "mysql -u root -p[redacted] db"),
        ("docker login -u me -p hunter2 reg", "docker login -u me -p [redacted] reg"),
        ("printf '//r/:_authToken=abc' >> .npmrc", "printf '//r/:_authToken=[redacted]' >> .npmrc"),
        ("password: hunter2\nuser: me", "password: [redacted]\nuser: me"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY----- x", "[redacted:private-key] x"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----\nb3Bl", "[redacted:private-key]"),
    ],
)  # fmt: skip
def test_only_the_secret_is_redacted(text: str, kept: str | None) -> None:
    if kept is not None:
        assert redact(text) == kept
    assert redact(redact(text)) == redact(text)


def test_value_of_a_secret_option_is_redacted() -> None:
    words = ["tool", "--password", "a b", "--token=c d", "-H", "Authorization: Bearer e", "curl", "-u", "me:f"]
    assert redact_words(words) == [
        *("tool", "--password", "[redacted]", "--token=[redacted]", "-H"),
        *("Authorization: Bearer [redacted]", "curl", "-u", "me:[redacted]"),
    ]


def test_values_of_credential_variables_are_redacted() -> None:
    environ = {
        "GITHUB_TOKEN": "plain words",
        "DB_PASSWORD": "longer than plain words",
        "SHORT_SECRET": "true",
        "HOME": "/home/me",
        "SSH_AUTH_SOCK": "/run/agent",
        "TOKEN_FILE": "/run/token",
    }
    secrets = secrets_of(environ)
    assert secrets == (("DB_PASSWORD", "longer than plain words"), ("GITHUB_TOKEN", "plain words"))
    text = "echo longer than plain words, plain words, true, /home/me, /run/agent /run/token"
    kept = "echo [redacted:DB_PASSWORD], [redacted:GITHUB_TOKEN], true, /home/me, /run/agent /run/token"
    assert redact(text, secrets) == kept


def test_cut_value_is_redacted_and_similar_text_is_kept() -> None:
    secrets = (("DATABASE_URL", "postgres://me@host/name-of-it"),)
    assert redact("/x/postgres://me@ho… is outside", secrets) == "/x/[redacted:DATABASE_URL]… is outside"
    for text in ("psql postgres://you@host/x", "postgres://you… is outside", "post…", "… postgres://me@h"):
        assert redact(text, secrets) == text


X = "Zq9xKv27LmPw"
COMMANDS = [
    # Settings.
    f"aws configure set aws_secret_access_key {X}",
    f"aws configure set default.aws_session_token {X} --profile p",
    f"npm config set //r.example/:_authToken {X}",
    f"npm set //r.example/:_authToken {X}",
    f"yarn config set npmAuthToken {X}",
    f"pip config set global.password {X}",
    f"poetry config pypi-token.pypi {X}",
    f"poetry config http-basic.foo.password '{X}'",
    f"git config --global http.proxyPassword {X}",
    f"git -C sub config user.token {X}",
    f"doppler configure set token {X}",
    f"pulumi config set --secret db:name {X}",
    f"conda config --set api_token {X}",
    f"ngrok config add-authtoken {X}",
    f"ngrok authtoken {X}",
    f"x set-token {X}",
    # Options.
    f"twine upload -u me -p {X} dist/*",
    f"az login -u me -p {X}",
    f"az login --service-principal -u me --password {X}",
    f"cf login -u me -p {X}",
    f"mongosh -u me -p {X} h/db",
    f"ldapmodify -D cn=me -w {X}",
    f"ssh-keygen -q -N {X} -f key",
    f"keytool -list -keystore k -storepass {X}",
    f"curl --oauth2-bearer {X} https://h/",
    f"aws secretsmanager create-secret --name n --secret-string {X}",
    f"aws ssm put-parameter --name n --type SecureString --value {X}",
    f"az keyvault secret set --vault-name v --name n --value {X}",
    f"gh secret set NAME --body {X}",
    f"gh secret set NAME --body={X}",
    f"kubectl create secret generic n --from-literal=k={X}",
    f"kubectl -n ns create secret generic n --from-literal k='{X}'",
    f"fly secrets set NAME={X} OTHER={X}",
    # Operands of subcommands.
    f"vault login {X}",
    f"vault login -method=token {X}",
    f"cargo login {X}",
    f"wandb login {X}",
    f"snyk auth {X}",
    f"bw unlock {X}",
    # Input.
    f"gh auth login --with-token <<< {X}",
    f"gh auth login --with-token <<<'{X}'",
    f'docker login -u me --password-stdin r.example <<< "{X}"',
    f"vault login - <<< {X}",
    f"gh secret set NAME <<< {X}",
    f"passwd me <<< {X}",
    f"echo {X} | docker login -u me --password-stdin",
    f"printf '%s' {X} | gh auth login --with-token",
    f"echo -n '{X}' | sudo -S id",
    f"cd x && echo me:{X} | chpasswd && ls",
    # Text of files.
    f"echo 'machine h.example login me password {X}' > ~/.netrc",
    f"printf 'machine h.example\\n  login me\\n  password {X}\\n' > ~/.netrc",
    f"cat > ~/.netrc <<EOF\nmachine h.example\nlogin me\npassword {X}\nEOF",
    f"cat > ~/.netrc <<EOF\nmachine h.example password {X} login me\nEOF",
    f"echo default password {X} >> ~/.netrc",
    # Names.
    f"JWT={X} ./run",
    f"export MY_JWT='{X}'",
    f"./run --jwt {X}",
    f"curl 'https://a.example/c?sv=1&sig={X}&se=2'",
    f"curl https://a.example/c?sig={X}",
    f"wget 'https://b.example/k?X-Amz-Credential=a&X-Amz-Signature={X}'",
    f"curl 'https://maps.example/x?key={X}'",
]


@pytest.mark.parametrize("text", COMMANDS)
def test_secret_argument_is_redacted(text: str) -> None:
    assert X not in redact(text)
    assert may_hold_secret(text, ())
    assert redact(redact(text)) == redact(text)
    if not any(sign in text for sign in "<>|&\n"):
        words = shlex.split(text)
        assert X not in " ".join(redact_words(words))
        assert may_hold_secret(" ".join(words), ())
    for shell in (f"bash -c {shlex.quote(text)}", f"cd x; {text} && ls"):
        assert X not in redact(shell)
    assert X not in " ".join(redact_words(["sh", "-c", text]))


@pytest.mark.parametrize(
    "text",
    [
        "git config --get credential.helper",
        "git config --global credential.helper store",
        "git config user.signingkey ABCDEF0123456789",
        "npm config get //r/:_authToken",
        "npm config delete //r/:_authToken --location=user",
        "git commit -m 'config: set password to required'",
        "git commit -m 'Set the token limit; login page and password reset'",
        "echo 'the login form: password field'",
        "grep -rn 'set password' src | head -20",
        "echo login | grep auth",
        "echo x | sudo tee /etc/hosts",
        "echo hello | docker build -t login -",
        "kubectl create secret generic n --from-file=./dir",
        "kubectl get secrets -n ns",
        "gh secret list",
        "docker login registry.example:5000",
        "npm login --registry https://r.example/",
        "vault login -method=oidc role=dev",
        "cat <<< login",
        "useradd -m git && mkdir -p /home/git/.ssh",
        "python -c 'def f(sig, key): return sig'",
        "curl 'https://h/?key=value&code=200'",
        "make set-token-length",
    ],
)
def test_harmless_arguments_are_kept(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize("value", ["ab'cd'ef", 'ab"cd"ef', "ab\\cd\\ef", "a b'c d", 'it\'s "xyz"'])
def test_quoted_value_of_a_variable_is_redacted(value: str) -> None:
    secrets = secrets_of({"MY_TOKEN": value})
    single, double = shlex.quote(value), '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    escaped = "".join(c if c.isalnum() else f"\\{c}" for c in value)
    for form in (value, single, double, escaped):
        for text in (f"tool {form} now", f"bash -c 'tool {form}'", f"x={form}; ls"):
            assert may_hold_secret(text, secrets)
            kept = redact(text, secrets)
            assert value.translate(SHELL_QUOTES) not in kept.translate(SHELL_QUOTES), form


CARRIERS: list[Callable[[str], str]] = [
    "export API_TOKEN={}".format,
    "export API_TOKEN='{}' && ls".format,
    'deploy --password "{}" now'.format,
    "deploy --client-secret={} now".format,
    "curl -H 'Authorization: Bearer {}' h".format,
    'curl -H "PRIVATE-TOKEN: {}0123456789" h'.format,
    'curl -d \'{{"api_key": "{}"}}\' h'.format,
    "sshpass -p '{}' ssh h".format,
    "curl -u 'me:{}' h".format,
    "bash -c 'DB_PASSWORD=\"{}\" run'".format,
    "bash -c \"cd x; ACCESS_KEY='{}' run\"".format,
    "cat > .env <<EOF\nA=1\nSECRET_KEY={}\nEOF".format,
]


@given(PASSWORD, st.sampled_from(CARRIERS))
def test_password_beside_its_name_is_redacted(password: str, carrier: Callable[[str], str]) -> None:
    text = carrier(password)
    assert password not in redact(text).replace(carrier("").strip(), "")
    assert password not in redact_words(["sh", "-c", text])[2].replace(carrier("").strip(), "")


@given(SHAPED, st.text(max_size=20), st.text(" \n\"'=:;,/@|", min_size=1, max_size=3), st.text(max_size=20))
def test_tokens_of_known_formats_are_redacted(token: str, before: str, between: str, after: str) -> None:
    for text in (token, f"{before}{between}{token}{between}{after}", f"echo {token} | tee x"):
        assert token not in redact(text)
        assert token not in redact_words([text])[0]
    assert token not in " ".join(redact_words(["git", "push", token, after]))


@given(st.text(min_size=6, max_size=40), st.text(max_size=30), st.text(max_size=30))
def test_random_values_of_credential_variables_are_redacted(value: str, before: str, after: str) -> None:
    secrets = secrets_of({"SOME_TOKEN": value})
    marked = redact(before + value + after, secrets)
    assert marked.count(value) <= (before + "[redacted:SOME_TOKEN]" + after).count(value)


def is_kept_where_no_sign_is_seen(text: str) -> bool:
    return may_hold_secret(text, ()) or (redact(text) == text and redact_words([text]) == [text])


@given(st.text(max_size=40))
def test_text_without_a_sign_contains_no_secret(text: str) -> None:
    assert is_kept_where_no_sign_is_seen(text)


@settings(max_examples=1000)
@given(SHAPED, PASSWORD, st.sampled_from(CARRIERS))
def test_every_secret_has_a_sign(token: str, password: str, carrier: Callable[[str], str]) -> None:
    assert may_hold_secret(token, ())
    assert may_hold_secret(carrier(password), ())
    assert is_kept_where_no_sign_is_seen(token[: len(token) // 3])


@given(st.text(max_size=200))
def test_redaction_accepts_any_text_and_is_idempotent(text: str) -> None:
    assert redact(redact(text)) == redact(text)
    assert len(redact_words([text, text])) == 2


@given(st.text("abcdef0123456789", min_size=40, max_size=64))
def test_hashes_are_kept(digest: str) -> None:
    assert redact(f"git show {digest}") == f"git show {digest}"


@pytest.mark.parametrize(
    "part",
    [
        *(
            "token=a ",
            "sk-",
            "eyJ",
            "://",
            "'",
            '"\\',
            "-----BEGIN ",
            "token-",
            "bearer ",
            "((",
            "vault login a ",
            "&sig=",
        ),
        *("set token ", "echo a | ", "machine a password b ", "<<< a ", "secrets set a=b "),
    ],
)
def test_hostile_text_does_not_slow_redaction(part: str) -> None:
    text = part * (256 * 1024 // len(part))
    kept = redact(text)
    assert kept == text or kept == f"[redacted: {len(text)} characters]" or len(kept) < len(text) + 20 * MAX_SPANS
