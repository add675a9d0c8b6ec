"""Hosts and grants have one canonical form or are refused, in every notation."""

import ipaddress
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral._lib.network import network_grants
from corral._lib.network.network_grants import Grants

CANONICAL = {
    "plain": ("index.example", "index.example"),
    "mixed case": ("InDeX.Example", "index.example"),
    "dot at the end": ("index.example.", "index.example"),
    "punycode": ("XN--BCHER-KVA.example", "xn--bcher-kva.example"),
    "underscore": ("_sip._tcp.example", "_sip._tcp.example"),
    "one label": ("db", "db"),
    "longest label": ("a" * 63 + ".example", "a" * 63 + ".example"),
    "address": ("192.0.2.1", "192.0.2.1"),
    "address in brackets": ("[2001:DB8::1]", "2001:db8::1"),
    "bare address": ("2001:0db8:0:0:0:0:0:1", "2001:db8::1"),
    "label that begins with digits": ("1and1.example", "1and1.example"),
    "name whose first label is a number": ("127.example", "127.example"),
}
REFUSED = {
    "empty": "",
    "root": ".",
    "NUL": "index.example\0.evil.example",
    "percent": "index%2eexample",
    "percent NUL": "index.example%00.evil.example",
    "two dots": "index..example",
    "two dots at the end": "index.example..",
    "dot in front": ".example",
    "space": "index.example ",
    "tab": "index\t.example",
    "newline": "index.example\nevil.example",
    "carriage return": "index.example\r",
    "user": "user@index.example",
    "slash": "index.example/",
    "backslash": "index.example\\evil.example",
    "question mark": "index.example?",
    "hash": "index.example#",
    "wildcard": "*.example",
    "port": "index.example:443",
    "hyphen in front": "-x.example",
    "hyphen behind": "x-.example",
    "long label": "a" * 64 + ".example",
    "long name": ".".join(["abcdefg"] * 40),
    "unicode": "bücher.example",
    "dotless i": "ındex.example",
    "fullwidth": "ｉndex.example",
    "ideographic full stop": "index。example",
    "soft hyphen": "in\u00addex.example",
    "fullwidth digits": "１２７.0.0.1",
    "decimal address": "2130706433",
    "octal address": "0177.0.0.1",
    "octal whole": "017700000001",
    "hex address": "0x7f000001",
    "hex part": "0x7f.0.0.1",
    "upper hex": "0X7F.0.0.1",
    "short address": "127.1",
    "address with zero in front": "192.168.01.1",
    "address with dot at the end": "192.0.2.1.",
    "too large a part": "192.0.2.256",
    "five parts": "1.2.3.4.5",
    "hex last label": "example.0x1",
    "bare 0x": "example.0x",
    "zone": "fe80::1%eth0",
    "zone in brackets": "[fe80::1%25eth0]",
    "mapped": "::ffff:127.0.0.1",
    "mapped hex": "[::ffff:7f00:1]",
    "open bracket": "[::1",
    "closing bracket": "::1]",
    "two brackets": "[[::1]]",
    "IPv4 in brackets": "[127.0.0.1]",
    "name in brackets": "[index.example]",
    "empty brackets": "[]",
}


@pytest.mark.parametrize("case", CANONICAL)
def test_host_has_one_canonical_form(case: str) -> None:
    asked, expected = CANONICAL[case]
    assert network_grants.parse_host(asked) == expected
    assert network_grants.parse_host(expected) == expected


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_host_is_refused(case: str) -> None:
    with pytest.raises(ValueError, match=r"is (no|not|an IPv4)"):
        network_grants.parse_host(REFUSED[case])


@pytest.mark.parametrize(
    "text", ["", "0", "00", "080", "65536", "99999999999999999999", "-1", "+1", " 1", "1 ", "4_4", "٤٤٣", "https"]
)
def test_invalid_port_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="port"):
        network_grants.parse_port(text)


GRANTS = {
    "index.example:443": "index.example:443",
    "*.Example.org:443": "*.example.org:443",
    "db.example:5432": "db.example:5432",
    "*.example.co.uk:443": "*.example.co.uk:443",
    "*.co.example:443": "*.co.example:443",
    "*.t.co:443": "*.t.co:443",
    "co.uk:443": "co.uk:443",
    "127.0.0.1:8000": "127.0.0.1:8000",
    "[::1]:8000": "[::1]:8000",
    "[2001:DB8:0::1]:1": "[2001:db8::1]:1",
}


@pytest.mark.parametrize("text", GRANTS)
def test_grant_has_one_canonical_form(text: str) -> None:
    assert network_grants.parse_grant(text) == GRANTS[text]


@pytest.mark.parametrize(
    "text",
    [
        *(
            "index.example",
            "index.example:",
            "index.example:0",
            "index.example:https",
            "index.example:*",
            ":443",
            "*:443",
        ),
        *("*.co.uk:443", "*.com.au:443", "*.or.jp:443", "*.ORG.nz:443"),
        *("*.org:443", "*.1.2.3.4:443", "*.[::1]:443", "a.*.example:443", "*example.org:443", "**.example.org:443"),
        *("index.example.:443", "*.example.org.:443", "https://index.example:443", "user@index.example:443"),
        *("index.example:443/", "::1:443", "[::1]443", "[::1]", "10.0.0.0/8:443", "", " index.example:443", 443, None),
    ],
)
def test_invalid_grant_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        network_grants.parse_grant(text)


def test_wildcard_covers_subdomains_only() -> None:
    grants = Grants(("*.example.org:443", "index.example:443", "192.0.2.1:80"))
    assert grants.covering("a.example.org", 443) == "*.example.org:443"
    assert grants.covering("b.a.example.org", 443) == "*.example.org:443"
    assert grants.covering("index.example", 443) == "index.example:443"
    assert grants.covering("192.0.2.1", 80) == "192.0.2.1:80"
    near = ["example.org", "aexample.org", "example.org.evil.example", "a.example.orgs", "sub.index.example"]
    assert [grants.covering(name, 443) for name in near] == [""] * len(near)
    assert grants.covering("a.example.org", 80) == ""
    assert grants.covering("a.example.org", 1443) == ""
    assert grants.covering("192.0.2.1", 8080) == ""


@given(st.text(max_size=300))
def test_any_text_is_canonical_or_refused(text: str) -> None:
    try:
        found = network_grants.parse_host(text)
    except ValueError:
        return
    assert network_grants.parse_host(found) == found
    assert set(found) <= set(string.ascii_lowercase + string.digits + "._-:")
    assert len(found) <= network_grants.MAX_NAME


@given(st.text(alphabet="0123456789abcdefxABCDEFX.:[]%", min_size=1, max_size=40))
def test_address_notation_of_other_parsers_is_equal_or_refused(text: str) -> None:
    try:
        found = network_grants.parse_host(text)
    except ValueError:
        return
    assert network_grants.is_address(found) == _reads_as_address(found)
    if _reads_as_address(text.strip("[]")):
        assert ipaddress.ip_address(found) == ipaddress.ip_address(text.strip("[]"))


def _reads_as_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


@given(st.ip_addresses())
def test_address_is_its_own_canonical_form(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        with pytest.raises(ValueError, match="IPv4"):
            network_grants.parse_host(str(address))
        return
    found = network_grants.parse_host(str(address))
    assert ipaddress.ip_address(found) == address
    assert network_grants.is_address(found)


@given(st.integers(0, 2**32 - 1), st.sampled_from(["{}", "{:#x}", "0{:o}"]))
def test_address_as_one_number_is_refused(number: int, form: str) -> None:
    with pytest.raises(ValueError, match="is no"):
        network_grants.parse_host(form.format(number))


@given(st.text(max_size=60))
def test_any_grant_is_canonical_or_refused(text: str) -> None:
    try:
        found = network_grants.parse_grant(text)
    except ValueError:
        return
    assert network_grants.parse_grant(found) == found
