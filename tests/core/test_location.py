"""The hosts of a ``LOCATION``, read in one place; what stands in front of the last ``@`` is never a part of one."""

from __future__ import annotations

import pytest

from distlock_web.core.location import host_and_port, split_location, without_credentials


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("h", ("h", 7)),
        ("Some-Host.example:65535", ("Some-Host.example", 65535)),
        ("10.0.0.1:1", ("10.0.0.1", 1)),
        ("[::1]", ("::1", 7)),
        ("[fe80::1]:26379", ("fe80::1", 26379)),
        *[
            (wrong, None)
            for wrong in ("", ":5", "h:", "h:0", "h:65536", "h:x", "h:-1", "h:1:2", "::1", "[::1", "[::1]x")
        ],
        *[(wrong, None) for wrong in ("u@h", "u:p@h:1", "h/x", "h?x", "h#x")],
    ],
)
def test_a_host_may_have_a_port(given: str, found: tuple[str, int] | None) -> None:
    assert host_and_port(given, 7) == found


def test_a_location_has_hosts_a_path_and_a_query() -> None:
    found = split_location("redis+sentinel://u:p%40@a,b:2,[::1]:3/name/0?x=1&y=2")
    assert found == ("redis+sentinel", "u:p%40@", ["a", "b:2", "[::1]:3"], "name/0", "x=1&y=2")
    assert found.of_host("b:2", "redis", "0") == "redis://u:p%40@b:2/0?x=1&y=2"
    assert split_location("zookeeper://a").of_host("a", "zookeeper", "") == "zookeeper://a/"


@pytest.mark.parametrize(
    ("location", "cut_short"),
    [
        ("redis://u:p@a/0?x=1", False),
        ("redis://u:a/b@a/0", True),
        ("redis://u:a?b@a/0", True),
        ("redis://u:a/b?c==@a/0", True),
        ("redis://u:a?b@a", True),
        ("redis://secret?b@a", True),
        ("redis://u:a?b=c&d@a", True),
        ("redis://u:a#b@a/0", True),
        ("redis://u:a,b#c?d=e@a/0", True),
        ("redis://u:a%2Fb%3Fc@a", False),
        ("redis://u:p@a/0#b", False),
        ("redis://:p@a,b/x?client_name=web@host", False),
        ("redis://a/x?password=p@ss", False),
        ("redis://u:a?hostname=b@a", True),
        ("redis://u:1234/0?password=b@a", True),
        ("redis://u:a@b?client_name=c@a", True),
        ("redis://u:p@a:1/0?client_name=web@host", False),
        ("redis://a/x?db=0&client_name=celery@host/1&x==", False),
        ("redis://a/0?ssl_ca_certs=/x@y/ca.pem", False),
        ("redis://a?ssl_ca_certs=/x@y/ca.pem", True),
    ],
)
def test_a_password_that_ends_the_hosts_too_soon_is_noticed(location: str, cut_short: bool) -> None:
    assert split_location(location).cut_short is cut_short


@pytest.mark.parametrize("password", ["secret", "se@cret", "a,b", "a:1", "se#cret"])
def test_a_password_is_never_a_part_of_a_host(password: str) -> None:
    """Also where it should have been percent-encoded: messages name hosts."""
    location = f"redlock://user:{password}@a:1,b:2/0"
    assert split_location(location).hosts == ["a:1", "b:2"]
    assert without_credentials(location) == "redlock://***@a:1,b:2/0"
