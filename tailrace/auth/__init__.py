"""Who is calling: from a signed credential (a JWT) to a principal.

principal     who a caller is, and why a credential is refused
issuers       the issuers file: who may sign, with which keys
keys          one checked key
jwks          keys that an issuer publishes, fetched and kept fresh (the only I/O)
verification  credential -> principal; synchronous, without I/O and state
strict_json   the JSON reader for credentials, key sets and the issuers file
jwt_library   the adapter of python-jose, the only module that imports it
"""
