"""Who a caller is: issuers, their key sets, and the verification of credentials.

In: the text of a credential and the issuers' file. Out: a `Principal`, or `InvalidCredential` with
its reason. Only this room imports the JWT library.
"""
