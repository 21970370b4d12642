"""Checks that scripts/client-tests.sh adds to schemathesis."""

import schemathesis


@schemathesis.hook
def before_call(context, case):
    # Keys that it makes up have bytes that no header may have. The one of the command line is not among these.
    if case.headers:
        case.headers.pop("Authorization", None)


@schemathesis.check
def asks_for_a_key(ctx, response, case):
    assert response.status_code == 401, f"{response.status_code} without a key"
