"""What a push does when the Hub or the network fails: one line, the right code, OUT intact, and another try works."""

import pytest

from tests.hub.conftest import PATIENCE, files_of, fresh, refused
from tests.hub.test_push import commits, holds


@pytest.fixture(params=["lfs", pytest.param("xet", marks=pytest.mark.slow)])
def hub(request, hubs):
    """Both ways of uploading; the slower one with -m slow."""
    return fresh(hubs[request.param])


@pytest.fixture
def pushing(client, out):
    """Push; whatever happens, OUT stays as it was."""
    before = files_of(out)

    def push(hub, *options, **changes):
        done = client(hub, "push", out, "tester/model", *options, **changes)
        assert files_of(out) == before
        return done

    return push


def recovers(hub, pushing, out, *options):
    done = pushing(hub, *options)
    assert done.code == 0, done.err
    assert holds(hub, out)
    assert len(commits(hub)) == 1


@pytest.mark.parametrize(
    ("pattern", "status", "headers"),
    [
        ("whoami", 500, {}),
        ("repos/create", 503, {}),
        ("/preupload/", 500, {}),
        ("/commit/", 500, {}),
        ("/commit/", 429, {"Retry-After": "1"}),
        ("/commit/", 429, {"ratelimit": '"api";r=0;t=1'}),
    ],
)
def test_failures_that_pass_by(hub, pushing, out, pattern, status, headers):
    hub.fail(pattern, status, headers=headers)
    recovers(hub, pushing, out)


@pytest.mark.parametrize("status", [504, None])
def test_the_answer_is_lost_after_the_commit_landed(hub, pushing, out, status):
    hub.fail("/commit/", status, after=True)
    recovers(hub, pushing, out)


def test_the_connection_is_cut_in_the_middle_of_a_file(lfs, pushing, out):
    lfs.fail("PUT /_lfs/", drop_after=20_000)
    recovers(lfs, pushing, out)


def test_an_interrupted_push_goes_on(lfs, pushing, out):
    lfs.fail("/commit/", 422, message="refused")
    refused(pushing(lfs), 1, "422", "refused")
    assert len(lfs.asked("PUT /_lfs/")) == 5
    lfs.reset()
    recovers(lfs, pushing, out)
    assert not lfs.asked("PUT /_lfs/")


def test_the_connection_is_cut_at_the_commit(hub, pushing, out):
    hub.fail("/commit/", drop_after=100)
    recovers(hub, pushing, out)


def test_no_token_and_a_bad_one(hub, pushing, out):
    refused(pushing(hub, HF_TOKEN=None), 1, "no token", "HF_TOKEN")
    refused(pushing(hub, HF_TOKEN="hf_bad"), 1, "401", "HF_TOKEN")
    assert not hub.state.repositories
    recovers(hub, pushing, out)


@pytest.mark.parametrize("pattern", ["preupload", "/commit/"])
def test_refusals_are_not_tried_again(hub, pushing, out, pattern):
    hub.fail(pattern, 403, message="Private repository storage limit reached")
    refused(pushing(hub), 1, "403", "storage limit reached")
    assert len(hub.asked(pattern)) == 1
    recovers(hub, pushing, out)


def test_a_token_that_may_not_write(lfs, pushing, out):
    lfs.role = "read"
    refused(pushing(lfs), 1, "may only read")
    lfs.role = "write"
    lfs.state.create("tester/model").writable = False
    refused(pushing(lfs), 1, "403", "write access")
    lfs.repository("tester/model").writable = True
    recovers(lfs, pushing, out)


def test_somebody_else_committed_meanwhile(hub, pushing, out):
    hub.fail("/commit/", 412, times=2)
    refused(pushing(hub), 1, "412", "push again")
    assert len(hub.asked("/commit/")) == 2
    recovers(hub, pushing, out)


def test_a_server_that_never_answers(lfs, pushing, out):
    lfs.fail("whoami", delay=20, times=9)
    refused(pushing(lfs, MATHNEURO_HUB_TIMEOUT="0.5"), 1, "5 tries", "no answer within 0.5 s")
    lfs.reset()
    recovers(lfs, pushing, out)


def test_an_answer_that_stalls_once(hub, pushing, out):
    hub.fail("/commit/", delay=float(PATIENCE) + 2, status=500)
    recovers(hub, pushing, out)


def test_no_such_branch_of_a_pull_request(lfs, pushing, out):
    recovers(lfs, pushing, out)
    refused(pushing(lfs, "--revision", "refs/pr/7"), 1, "refs/pr/7", "no such branch")


def test_a_hub_without_xet_says_how_to_go_without(lfs, pushing):
    refused(pushing(lfs, HF_HUB_DISABLE_XET=None), 1, "--no-xet")
