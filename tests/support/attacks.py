"""Forged credentials: `tailrace.auth.verification.verify` and every endpoint refuse each of them
(401, never 5xx).

`Forge` holds the keys of five issuers and signs whatever it is given, so an entry is wrong in
exactly the one way its name says.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import functools
import hashlib
import hmac
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final
from unittest import mock

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa, utils

AUDIENCE: Final = "tailrace"
LEEWAY: Final = 30
MAX_LIFETIME: Final = 3600
SECRET: Final = bytes(range(40, 90))

Members = list[
    tuple[str, str]
]  # names with raw JSON text, so that duplicates and impossible numbers can be written


@dataclass(frozen=True)
class Attack:
    name: str
    token: str
    reason: str


def b64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def json_object(members: Members) -> bytes:
    return ("{" + ",".join(f"{json.dumps(name)}:{value}" for name, value in members) + "}").encode()


def replaced(members: Members, name: str, value: str | None) -> Members:
    """With `name` set to the JSON text `value`, or without it for None."""
    rest = [member for member in members if member[0] != name]
    return rest if value is None else [*rest, (name, value)]


class Forge:
    """Issuers by short name: rs, es, hs, and two more ES256 ones: `at` (type at+jwt, lists of
    audiences, ignores x5t), `anon` (key without id)."""

    def __init__(self) -> None:
        self.rsa = rsa.generate_private_key(65537, 2048)
        self.ec = ec.generate_private_key(ec.SECP256R1())
        self.other_rsa = rsa.generate_private_key(65537, 2048)
        self.other_ec = ec.generate_private_key(ec.SECP256R1())
        self.algorithms = {
            "rs": "RS256",
            "es": "ES256",
            "hs": "HS256",
            "at": "ES256",
            "anon": "ES256",
        }

    def settings(self) -> dict[str, Any]:
        """The content of an issuers file."""
        common = {
            "audience": AUDIENCE,
            "leeway": LEEWAY,
            "max_lifetime": MAX_LIFETIME,
            "types": ["JWT"],
        }
        ec_pem, rsa_pem = pem(self.ec.public_key()), pem(self.rsa.public_key())
        issuers = [
            {**common, "iss": iss("rs"), "algorithm": "RS256", "keys": {"key-rs": rsa_pem}},
            {**common, "iss": iss("es"), "algorithm": "ES256", "keys": {"key-es": ec_pem}},
            {
                **common,
                "iss": iss("hs"),
                "algorithm": "HS256",
                "secrets": {"key-hs": base64.b64encode(SECRET).decode()},
            },
            {
                **common,
                "iss": iss("at"),
                "algorithm": "ES256",
                "keys": {"key-at": ec_pem},
                "types": ["at+jwt"],
                "audience_lists": True,
                "ignored_headers": ["x5t"],
            },
            {**common, "iss": iss("anon"), "algorithm": "ES256", "keys": {"": ec_pem}},
        ]
        return {"issuers": issuers}

    def header(self, short: str) -> Members:
        members = [
            ("alg", quoted(self.algorithms[short])),
            ("typ", quoted("at+jwt" if short == "at" else "JWT")),
        ]
        return members if short == "anon" else [*members, ("kid", quoted(f"key-{short}"))]

    def claims(self, short: str, now: float) -> Members:
        times = [("iat", str(int(now))), ("exp", str(int(now) + 600))]
        return [
            ("iss", quoted(iss(short))),
            ("aud", quoted(AUDIENCE)),
            ("sub", quoted("alice")),
            *times,
        ]

    def sign(self, short: str, text: str) -> bytes:
        return {"RS256": rs256(self.rsa), "ES256": es256(self.ec), "HS256": hs256(SECRET)}[
            self.algorithms[short]
        ](text)

    def token(
        self,
        short: str,
        now: float,
        header: Members | bytes | None = None,
        claims: Members | bytes | None = None,
    ) -> str:
        """Signed with the issuer's own key, whatever the header says."""
        return signed(
            self.header(short) if header is None else header,
            self.claims(short, now) if claims is None else claims,
            lambda text: self.sign(short, text),
        )

    def with_header(self, short: str, now: float, name: str, value: str | None) -> str:
        return self.token(short, now, header=replaced(self.header(short), name, value))

    def with_claim(self, short: str, now: float, name: str, value: str | None) -> str:
        return self.token(short, now, claims=replaced(self.claims(short, now), name, value))


@contextlib.contextmanager
def library_clock(now: float) -> Iterator[None]:
    """python-jose reads the wall clock. A run of all tests lasts longer than leeway, so tests that
    sign at import stop it."""

    class Stopped(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Stopped:
            return cls.fromtimestamp(now, tz)

    with mock.patch("jose.jwt.datetime", Stopped):
        yield


def iss(short: str) -> str:
    return f"https://{short}.issuer.test"


def stable_id(value: object) -> str:
    """A name for a test's parameter that is the same in every process: times and made-up secrets
    are left out, so that a run can be shared out."""
    text = str(value).encode("unicode_escape").decode()
    return re.sub(r"[0-9]{9,}|[A-Za-z0-9+/=_-]{40,}|0x[0-9a-f]+", "…", text)[:60]


def quoted(text: str) -> str:
    return json.dumps(text)


def signed(header: Members | bytes, claims: Members | bytes, sign: Callable[[str], bytes]) -> str:
    parts = (
        content if isinstance(content, bytes) else json_object(content)
        for content in (header, claims)
    )
    text = ".".join(b64(part) for part in parts)
    return f"{text}.{b64(sign(text))}"


def pem(key: rsa.RSAPublicKey | ec.EllipticCurvePublicKey) -> str:
    return key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    ).decode()


def rs256(key: rsa.RSAPrivateKey) -> Callable[[str], bytes]:
    return lambda text: key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256())


def es256(key: ec.EllipticCurvePrivateKey) -> Callable[[str], bytes]:
    def sign(text: str) -> bytes:
        r, s = utils.decode_dss_signature(key.sign(text.encode(), ec.ECDSA(hashes.SHA256())))
        return r.to_bytes(32, "big") + s.to_bytes(32, "big")

    return sign


def hs256(secret: bytes) -> Callable[[str], bytes]:
    return lambda text: hmac.digest(secret, text.encode(), hashlib.sha256)


# ---- the corpus


def corpus(forge: Forge, now: float) -> Iterator[Attack]:
    yield from _algorithms(forge, now)
    yield from _confusion(forge, now)
    yield from _headers(forge, now)
    yield from _key_ids(forge, now)
    yield from _shapes(forge, now)
    yield from _claims(forge, now)
    yield from _times(forge, now)
    yield from _signatures(forge, now)


def _algorithms(forge: Forge, now: float) -> Iterator[Attack]:
    texts = [
        "none",
        "None",
        "nOnE",
        "",
        "PS256",
        "RS512",
        "S256",
        "ES384",
        "HS512",
        "es256",
        "EdDSA",
    ]
    values: list[tuple[str | None, str]] = [(quoted(text), "algorithm") for text in texts]
    values += [
        ('["ES256","HS256"]', "header"),
        ('{"a":1}', "header"),
        ("null", "header"),
        ("1", "header"),
        (None, "algorithm"),
    ]
    for short in ("rs", "es", "hs"):
        for value, reason in values:
            token = forge.with_header(short, now, "alg", value)
            yield Attack(f"alg {value} at {short}", token, reason)
            yield Attack(
                f"alg {value} at {short}, empty signature",
                token.rpartition(".")[0] + ".",
                "malformed",
            )


def _confusion(forge: Forge, now: float) -> Iterator[Attack]:
    for short, key in (("rs", forge.rsa.public_key()), ("es", forge.ec.public_key())):
        for form, secret in public_key_forms(key):
            header = replaced(forge.header(short), "alg", quoted("HS256"))
            token = signed(header, forge.claims(short, now), hs256(secret))
            yield Attack(f"HS256 with the public key of {short} as {form}", token, "algorithm")
    for form, secret in public_key_forms(forge.rsa.public_key()):
        token = signed(forge.header("hs"), forge.claims("hs", now), hs256(secret))
        yield Attack(
            f"at the HS256 issuer, signed with the public key of rs as {form}", token, "signature"
        )
    for author in ("rs", "es", "hs"):
        for name in sorted({"rs", "es", "hs"} - {author}):
            for alg, reason in (
                (forge.algorithms[author], "algorithm"),
                (forge.algorithms[name], "signature"),
            ):
                header = replaced(forge.header(name), "alg", quoted(alg))
                token = signed(
                    header,
                    forge.claims(name, now),
                    functools.partial(forge.sign, author),
                )
                yield Attack(f"{author} in the name of {name}, alg {alg}", token, reason)


def public_key_forms(
    key: rsa.RSAPublicKey | ec.EllipticCurvePublicKey,
) -> Iterator[tuple[str, bytes]]:
    text = pem(key)
    body = "".join(text.splitlines()[1:-1])
    yield "PEM", text.encode()
    yield "PEM on one line", text.replace("\n", "").encode()
    yield "stripped PEM", text.strip().encode()
    yield "PEM body", body.encode()
    yield "PEM body in lines", "\n".join(text.splitlines()[1:-1]).encode()
    yield "SPKI DER", base64.b64decode(body)
    yield "the empty key", b""
    if isinstance(key, rsa.RSAPublicKey):
        for name, encoding in (
            ("DER", serialization.Encoding.DER),
            ("PEM", serialization.Encoding.PEM),
        ):
            yield f"PKCS#1 {name}", key.public_bytes(encoding, serialization.PublicFormat.PKCS1)
        numbers = key.public_numbers()
        yield (
            "JWK",
            json.dumps(
                {"kty": "RSA", "n": number64(numbers.n, 256), "e": number64(numbers.e, 3)}
            ).encode(),
        )
    else:
        point = key.public_numbers()
        yield (
            "JWK",
            json.dumps(
                {
                    "kty": "EC",
                    "crv": "P-256",
                    "x": number64(point.x, 32),
                    "y": number64(point.y, 32),
                }
            ).encode(),
        )


def number64(number: int, length: int) -> str:
    return b64(number.to_bytes(length, "big"))


def _headers(forge: Forge, now: float) -> Iterator[Attack]:
    jwk = f'{{"kty":"EC","crv":"P-256","x":"{b64(bytes(32))}","y":"{b64(bytes(32))}"}}'
    denied = {
        "crit": '["exp"]',
        "jku": '"http://127.0.0.1:9/jwks"',
        "x5u": '"http://127.0.0.1:9/x5u"',
        "x5c": '["MIIB"]',
        "jwk": jwk,
        "zip": '"DEF"',
        "b64": "false",
        "enc": '"A256GCM"',
        "cty": '"JWT"',
    }
    for short in ("es", "at"):
        for name, value in denied.items():
            yield Attack(
                f"header {name} at {short}", forge.with_header(short, now, name, value), "header"
            )
            yield Attack(
                f"header {name} as text at {short}",
                forge.with_header(short, now, name, '"x"'),
                "header",
            )
    yield Attack("an unknown header", forge.with_header("es", now, "foo", '"bar"'), "header")
    yield Attack(
        "x5t where it is not ignored", forge.with_header("es", now, "x5t", '"abc"'), "header"
    )
    yield Attack(
        "x5t that is no text where it is ignored",
        forge.with_header("at", now, "x5t", "1"),
        "header",
    )
    for value in ("null", "1", "true", "[]"):
        yield Attack(f"typ {value}", forge.with_header("es", now, "typ", value), "header")
    for typ in (None, '""', '"jwt "', '"JWS"', '"at+jwt"', '"JOSE"', '"application/at+jwt"'):
        yield Attack(f"typ {typ} at es", forge.with_header("es", now, "typ", typ), "type")
    yield Attack(
        "typ JWT where at+jwt is pinned", forge.with_header("at", now, "typ", '"JWT"'), "type"
    )
    good = json_object(forge.header("es"))
    nested = json_object([*forge.header("es"), ("foo", "[" * 900 + "]" * 900)])
    broken = {
        "duplicate alg": json_object([("alg", '"none"'), *forge.header("es")]),
        "duplicate alg, same value": json_object([("alg", '"ES256"'), *forge.header("es")]),
        "duplicate alg by escape": b'{"\\u0061lg":"ES256",' + good[1:],
        "BOM": b"\xef\xbb\xbf" + good,
        "UTF-16": good.decode().encode("utf-16"),
        "not UTF-8": good[:-1] + b',"\xff":"x"}',
        "a list": b"[" + good + b"]",
        "a string": b'"ES256"',
        "empty": b" ",
        "trailing text": good + b"x",
        "two objects": good + good,
        "nested 900 deep": nested,
        "longer than its bound": json_object([*forge.header("es"), ("foo", quoted("x" * 1400))]),
    }
    for name, header in broken.items():
        yield Attack(f"header: {name}", forge.token("es", now, header=header), "malformed")


def _key_ids(forge: Forge, now: float) -> Iterator[Attack]:
    for kid in ("k" * 1025, "key-es\n", "key-es\x00"):
        yield Attack(
            f"kid {kid[:20]!r}", forge.with_header("es", now, "kid", quoted(kid)), "key_id"
        )
    unknown = [
        "../../etc/passwd",
        "x' OR '1'='1",
        "k" * 65,
        "key es",
        "ключ",
        "key-es/../key-es",
        "http://127.0.0.1:9/",
    ]
    for kid in unknown:
        yield Attack(
            f"kid {kid[:20]!r} that no key has",
            forge.with_header("es", now, "kid", quoted(kid)),
            "unknown_key",
        )
    yield Attack(
        "kid of 5,000 characters",
        forge.with_header("es", now, "kid", quoted("k" * 5000)),
        "malformed",
    )
    yield Attack(
        "kid in other case", forge.with_header("es", now, "kid", '"KEY-ES"'), "unknown_key"
    )
    yield Attack("kid unknown", forge.with_header("es", now, "kid", '"key-2"'), "unknown_key")
    yield Attack(
        "kid of another issuer", forge.with_header("es", now, "kid", '"key-at"'), "unknown_key"
    )
    for value in ("1", "null", '["key-es"]', '{"key-es":1}', "true"):
        yield Attack(f"kid {value}", forge.with_header("es", now, "kid", value), "header")
    other = es256(forge.other_ec)
    unnamed: list[tuple[str, str | None, str]] = [
        ("es", None, "signature"),
        ("es", "", "signature"),
        ("anon", None, "signature"),
        ("anon", "", "signature"),
        ("anon", "key-es", "unknown_key"),
    ]
    for short, key_id, reason in unnamed:
        header = replaced(forge.header(short), "kid", None if key_id is None else quoted(key_id))
        yield Attack(
            f"kid {key_id} at {short}, another key",
            signed(header, forge.claims(short, now), other),
            reason,
        )


def _shapes(forge: Forge, now: float) -> Iterator[Attack]:
    good = forge.token("es", now)
    header, payload, signature = good.split(".")
    texts = {
        "nothing": "",
        "one part": header,
        "2 parts": f"{header}.{payload}",
        "4 parts": f"{good}.{signature}",
        "JWE": ".".join(
            [
                b64(b'{"alg":"dir","enc":"A256GCM","zip":"DEF"}'),
                "",
                b64(bytes(12)),
                b64(bytes(64)),
                b64(bytes(16)),
            ]
        ),
        "only dots": "..",
        "space before": " " + good,
        "space after": good + " ",
        "newline after": good + "\n",
        "newline between": f"{header}.\n{payload}.{signature}",
        "tab inside": f"{header}.{payload}\t.{signature}",
        "padding on the signature": good + "==",
        "padding on the header": f"{header}=.{payload}.{signature}",
        "plus and slash": f"{header}.{payload}.{'+/' + signature[2:]}",
        "junk after the signature": good + "!!!",
        "comma": good + "," + good,
        "Bearer inside": "Bearer " + good,
        "empty signature": f"{header}.{payload}.",
        "empty header": f".{payload}.{signature}",
        "empty payload": f"{header}..{signature}",
        "NUL": good + "\x00",
        "non-ASCII digit": good[:-1] + "\u0661",
        "lone surrogate": good[:-1] + "\ud800",
        "one character too many in a part": (
            f"{header}.{payload + 'AAAA'[: (5 - len(payload) % 4) % 4 or 4]}.{signature}"
        ),
        "9 kB": good + "A" * 9000,
    }
    for name, text in texts.items():
        yield Attack(f"shape: {name}", text, "malformed")
    yield Attack(
        "9 kB and properly signed",
        forge.with_claim("es", now, "pad", quoted("x" * 6500)),
        "malformed",
    )
    dotted = f"{header}.{payload[:10]}.{payload[10:20]}.{payload[20:]}"
    yield Attack(
        "five parts by dots inside a signed payload",
        f"{dotted}.{b64(forge.sign('es', dotted))}",
        "malformed",
    )
    for short in ("es", "rs", "hs"):
        yield Attack(
            f"non-canonical last character of a signature at {short}",
            _uncanonical(forge.token(short, now)),
            "malformed",
        )
        yield Attack(
            f"signature longer by a group at {short}", forge.token(short, now) + "AAAA", "signature"
        )
    for place in ("header", "payload"):
        yield Attack(
            f"non-canonical {place}, properly signed",
            _uncanonical_part(forge, now, place),
            "malformed",
        )


def _uncanonical(token: str) -> str:
    """Another last character for the same bytes: its spare bits set."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    return token[:-1] + alphabet[alphabet.index(token[-1]) + 1]


def _uncanonical_part(forge: Forge, now: float, place: str) -> str:
    contents = {
        "header": json_object(forge.header("es")),
        "payload": json_object(forge.claims("es", now)),
    }
    contents[place] = contents[place].ljust(
        len(contents[place]) // 3 * 3 + 4
    )  # JSON ends with blanks; 4 spare bits
    parts = {name: b64(content) for name, content in contents.items()}
    parts[place] = _uncanonical(parts[place])
    text = f"{parts['header']}.{parts['payload']}"
    return f"{text}.{b64(forge.sign('es', text))}"


def _claims(forge: Forge, now: float) -> Iterator[Attack]:
    wrong = ["null", "true", "false", "[]", "{}", '""', "1.5", '"x"', '["x"]']
    reasons = {
        "iss": "issuer",
        "aud": "audience",
        "sub": "claims",
        "iat": "claims",
        "exp": "claims",
    }
    for name, reason in reasons.items():
        for value in [None, *wrong]:
            if (name, value) == ("sub", '"x"'):
                continue
            # A date in 1970: a good one by itself.
            early = name in {"iat", "exp"} and value == "1.5"
            yield Attack(
                f"{name} {value or 'missing'}",
                forge.with_claim("es", now, name, value),
                "lifetime" if early else reason,
            )
    for name in ("iat", "exp", "nbf"):
        yield from _bad_times(forge, now, name)
    yield from _bad_names(forge, now)
    good = json_object(forge.claims("es", now))
    broken = {
        "a list": b"[" + good + b"]",
        "not UTF-8": good[:-1] + b',"x":"\xff"}',
        "UTF-16": good.decode().encode("utf-16-le"),
        "BOM": b"\xef\xbb\xbf" + good,
        "nested 5,000 deep": good[:-1] + b',"x":' + b"[" * 2500 + b"]" * 2500 + b"}",
        "nested 100 deep": good[:-1] + b',"x":' + b'{"a":' * 100 + b"1" + b"}" * 100 + b"}",
        "duplicate sub": b'{"sub":"root",' + good[1:],
        "duplicate deeper": good[:-1] + b',"x":{"a":1,"a":2}}',
        "Infinity in an unused claim": good[:-1] + b',"x":Infinity}',
        "1e400 in an unused claim": good[:-1] + b',"x":1e400}',
        "5,000 digits in an unused claim": good[:-1] + b',"x":' + b"9" * 5000 + b"}",
        "single quotes": good.replace(b'"', b"'"),
        "comment": good + b"//",
    }
    for name, claims in broken.items():
        yield Attack(f"payload: {name}", forge.token("es", now, claims=claims), "malformed")


def _bad_times(forge: Forge, now: float, name: str) -> Iterator[Attack]:
    exact = int(now) + (600 if name == "exp" else 0)
    unreadable = ["1e400", "-1e400", "NaN", "Infinity", "-Infinity", "0x10", "+1", "01"]
    for value in unreadable:
        yield Attack(f"{name} {value}", forge.with_claim("es", now, name, value), "malformed")
    readable = [
        "-1",
        "0",
        "9" * 400,
        str(2**53),
        "-0.5",
        f"{2**53}.0",
        "1e300",
        f'"{exact}"',
        f"[{exact}]",
    ]
    for value in readable:
        yield Attack(f"{name} {value[:20]}", forge.with_claim("es", now, name, value), "claims")


def _bad_names(forge: Forge, now: float) -> Iterator[Attack]:
    for value in (['"tailrace"'], ['"tailrace"', '"other"'], []):
        yield Attack(
            f"aud as a list of {len(value)} at es",
            forge.with_claim("es", now, "aud", f"[{','.join(value)}]"),
            "audience",
        )
    lists = {
        "without us": ["other"],
        "of nine": ["tailrace", *"12345678"],
        "with a number": ["tailrace", 1],
        "nested": [["tailrace"]],
        "empty": [],
    }
    for name, audiences in lists.items():
        yield Attack(
            f"aud list {name} where lists are taken",
            forge.with_claim("at", now, "aud", json.dumps(audiences)),
            "audience",
        )
    for aud in ("tailrac", "tailrace ", "Tailrace", "tailrace\n"):
        yield Attack(f"aud {aud!r}", forge.with_claim("es", now, "aud", quoted(aud)), "audience")
    for issuer in (
        "https://es.issuer.test/",
        "https://ES.issuer.test",
        "es",
        "https://es.issuer.test\x00",
    ):
        yield Attack(
            f"iss {issuer!r}", forge.with_claim("es", now, "iss", quoted(issuer)), "issuer"
        )
    for sub in ("s" * 256, "a\nb", "a\x00", "\x7f", "a\u0085", "\ud800"):
        yield Attack(f"sub {sub[:10]!r}", forge.with_claim("es", now, "sub", quoted(sub)), "claims")
    yield Attack("an ID token", forge.with_claim("es", now, "at_hash", '"x"'), "type")
    for tenant in ("null", "1", '""', '"a|b"', '"a/b"', f'"{"t" * 65}"', '["a"]'):
        yield Attack(
            f"tenant {tenant[:10]}", forge.with_claim("es", now, "tenant", tenant), "claims"
        )
    for scope in (
        "null",
        "1",
        "true",
        "[1]",
        '["a b"]',
        '[["read"]]',
        '"a  b"',
        '" a"',
        '"a\\"b"',
        '"a\\nb"',
        f'"{"s" * 129}"',
        quoted(" ".join("x" * 65)),
    ):
        yield Attack(f"scope {scope[:10]}", forge.with_claim("es", now, "scope", scope), "claims")


def _times(forge: Forge, now: float) -> Iterator[Attack]:
    at = int(now)
    cases: Iterable[tuple[str, dict[str, int], str]] = [
        ("expired beyond leeway", {"iat": at - 600, "exp": at - LEEWAY - 2}, "expired"),
        ("expired an hour ago", {"iat": at - 3700, "exp": at - 3600}, "expired"),
        ("issued ahead beyond leeway", {"iat": at + LEEWAY + 3}, "not_yet_valid"),
        ("issued tomorrow", {"iat": at + 86400, "exp": at + 86500}, "not_yet_valid"),
        ("not before, beyond leeway", {"nbf": at + LEEWAY + 3}, "not_yet_valid"),
        ("lives longer than allowed", {"exp": at + MAX_LIFETIME + 1}, "lifetime"),
        ("lives ten years", {"exp": at + 10 * 365 * 86400}, "lifetime"),
        ("expires when issued", {"exp": at}, "lifetime"),
        ("expires before issued", {"iat": at + 20, "exp": at + 10}, "lifetime"),
        ("nothing left of a huge iat", {"iat": 2**53 - 2, "exp": 2**53 - 1}, "not_yet_valid"),
    ]
    for name, changes, reason in cases:
        claims = forge.claims("es", now)
        for claim, value in changes.items():
            claims = replaced(claims, claim, str(value))
        yield Attack(name, forge.token("es", now, claims=claims), reason)


def _signatures(forge: Forge, now: float) -> Iterator[Attack]:
    for short in ("es", "rs", "hs"):
        header, payload, signature = forge.token(short, now).split(".")
        content = base64.urlsafe_b64decode(signature + "==")
        for place in (0, len(content) // 2, len(content) - 1):
            flipped = bytearray(content)
            flipped[place] ^= 1
            yield Attack(
                f"bit {place * 8} flipped at {short}",
                f"{header}.{payload}.{b64(bytes(flipped))}",
                "signature",
            )
        yield Attack(
            f"all zero at {short}", f"{header}.{payload}.{b64(bytes(len(content)))}", "signature"
        )
        yield Attack(
            f"too short at {short}", f"{header}.{payload}.{b64(content[:-1])}", "signature"
        )
        yield Attack(
            f"signature of another token at {short}",
            f"{header}.{payload}.{b64(forge.sign(short, 'x.y'))}",
            "signature",
        )
    claims = forge.claims("es", now)
    yield Attack(
        "another EC key", signed(forge.header("es"), claims, es256(forge.other_ec)), "signature"
    )
    yield Attack(
        "another RSA key",
        signed(forge.header("rs"), forge.claims("rs", now), rs256(forge.other_rsa)),
        "signature",
    )
    yield Attack(
        "another secret",
        signed(forge.header("hs"), forge.claims("hs", now), hs256(SECRET[::-1])),
        "signature",
    )
    der = signed(
        forge.header("es"),
        claims,
        lambda text: forge.ec.sign(text.encode(), ec.ECDSA(hashes.SHA256())),
    )
    yield Attack("DER-encoded ES256", der, "signature")
    yield Attack(
        "RS256 at the ES256 issuer",
        signed(forge.header("es"), claims, rs256(forge.rsa)),
        "signature",
    )
    pss = padding.PSS(padding.MGF1(hashes.SHA256()), 32)
    token = signed(
        forge.header("rs"),
        forge.claims("rs", now),
        lambda text: forge.rsa.sign(text.encode(), pss, hashes.SHA256()),
    )
    yield Attack("PSS at the RS256 issuer", token, "signature")
    sha512 = signed(
        forge.header("rs"),
        forge.claims("rs", now),
        lambda text: forge.rsa.sign(text.encode(), padding.PKCS1v15(), hashes.SHA512()),
    )
    yield Attack("RS512 signature at the RS256 issuer", sha512, "signature")
