"""Auditing a provider over HTTP: fetch its list, draw sessions, audit each, and put the verdicts together.

Order matters: the list of signed heads is fetched first, the seed is drawn after it. What is then audited has to be
what the list promised.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Sequence

from verifiable.checking.verdict import Verdict
from verifiable.errors import VerifiableError, VerificationError
from verifiable.manifest.chain import Chain
from verifiable.session.challenge import draw_sessions, draw_turns
from verifiable.wire.keys import PublicKey
from verifier.campaign.crew import Member, audit_all
from verifier.campaign.fetched import Auditor, Fetched, conclude, count_turns, fetch
from verifier.campaign.outcome import Challenge
from verifier.campaign.plan import ChallengePlan, Clocked, plan
from verifier.campaign.weigh import Held, by_session, current_manifest, weigh
from verifier.provider.client import Client, Listed, read_answer
from verifier.provider.listing import read_listing
from verifier.provider.logged import LogReader
from verifier.provider.published import Published, check_log, log_keys
from verifier.provider.remember import Contradiction
from verifier.provider.window import Known

GROUP = 32
"""Sessions for each process that are fetched before they are audited."""
GROUP_BYTES = 64 << 20
"""Evidence after which no further session is added to a group."""


def audit_provider(
    auditor: Auditor,
    client: Client,
    count: int,
    seed: Callable[[], bytes],
    turns: int | None = None,
    tell: Callable[[int, int], None] = lambda done, total: None,
    *,
    rate: float | None = None,
    budget: float | None = None,
    before: int | None = None,
    announce: Callable[[ChallengePlan], None] = lambda plan: None,
    crew: Sequence[Member] = (),
    known: Sequence[Held] | None = None,
    given: bool = False,
) -> tuple[list[Verdict], Challenge]:
    """Draw `count` of the provider's sessions and audit them, with at most `turns` turns of each.

    Args:
        seed: called once, after the list was fetched; gives the challenge's seed.
        tell: told how many sessions are done.
        rate: the share of the sessions to draw, instead of `count`.
        budget: seconds after which no further session is begun; the plan and the draw say what that comes to.
        before: draw only sessions whose heads say that they were signed before that time (ms), a beacon's round.
        announce: told the plan before the first session is fetched.
        crew: processes that share the work; one, the auditor's own, where empty.
        known: what clients hand over of their sessions, of which as many are drawn; they are audited first, and have
            to be opened as the list's sessions have. A session is audited once, however it was drawn.
        given: the seed is one that was given to the auditor.

    Sessions are fetched in groups, so that those that begin alike can be audited one after the other; under a budget in
    groups of one for each process, since a provider must not be able to have its worst sessions come last.

    Raises:
        PolicyError: the rate is out of range; no trusted key signed the provider's manifest; there is no such host.
        VerificationError: the list cannot be had, or is none (`unreachable`).
    """
    manifest, signer = current_manifest(client, auditor.trust)
    log_key = None if manifest is None else manifest.log
    published = _published(auditor, client, log_key)
    clients = by_session(known or ())
    provider = None if signer is None else Known(Chain.of(auditor.trust), signer)
    listing = read_listing(client, provider, published, {key: each.newest.size for key, each in clients.items()})
    weighed = weigh(client, listing.entries, manifest, auditor.trust, before)
    own = {session: each.weight for session, each in clients.items()}
    planned = plan(
        list(weighed.weights.values()),
        count,
        rate,
        budget,
        turns=turns,
        known=None if known is None else list(own.values()),
        unproven=len(weighed.unproven),
        excluded=weighed.excluded,
        ahead=weighed.ahead,
        given=given,
        compared=listing.compared,
    )
    announce(planned)
    drawn_with = auditor.seed = seed()
    handed = [] if planned.known is None else draw_sessions(drawn_with, own, planned.known.sessions)
    chosen = draw_sessions(drawn_with, weighed.weights, planned.listed.sessions)
    apart = draw_sessions(drawn_with, dict.fromkeys(weighed.unproven, 1), planned.unproven.sessions)
    drawn = [session for pair in itertools.zip_longest(chosen, apart) for session in pair if session is not None]
    members = crew or [Member(auditor.worker, client)]
    known_logs = {} if published is None or log_key is None else {log_key.raw: published}
    log = LogReader(client, auditor.trust, auditor.delay, auditor.memory, auditor.quorum, known_logs)
    clocked = Clocked(budget, time.monotonic)
    verdicts: list[Verdict] = []
    done = itertools.count(1)
    most = len(members) * (1 if budget is not None else GROUP)
    listed = {session: weighed.listed[session] for session in drawn}
    wanted = [
        clients[session].wanted(drawn_with, turns, weighed.listed.get(session), session in listed) for session in handed
    ]
    known_ids = set(handed)
    wanted += [Fetched(session, one, size=one.size) for session, one in listed.items() if session not in known_ids]
    waiting, total = deque(wanted), len(wanted)
    for groups in itertools.count():
        if not waiting or not clocked.allows(groups):
            break
        group = fetch_group(auditor, client, drawn_with, turns, waiting, most)
        audited = audit_all(auditor, members, group, lambda: tell(next(done), total))
        verdicts += [conclude(auditor, client, log, *pair) for pair in zip(group, audited, strict=True)]
    tell(total, total)
    ids = [each.session for each in wanted[: len(verdicts)]]
    weights = {**own, **weighed.weights}
    return verdicts, Challenge(
        drawn_with,
        planned,
        sum(each in listed for each in ids),
        turns,
        sum(each in known_ids for each in ids),
        {session.hex(): weights[session] for session in (*handed, *chosen)},
        frozenset(session.hex() for session in chosen),
        listing,
        signer,
    )


def _published(auditor: Auditor, client: Client, log: PublicKey | None) -> Published | VerificationError | None:
    """The provider's log, before its list is read; None where there is none, the error where it can't be had.

    Raises what `check_log` raises, with a memory of what the log was.
    """
    if auditor.memory is not None:
        try:
            return check_log(auditor.memory, client)
        except Contradiction as error:
            if error.fraud is not None:
                auditor.keep("log.fraud", error.fraud.encode())
            raise
    if log is None:
        return None
    try:
        manifest = client.manifest()
        keys: Sequence[PublicKey] | None = read_answer(log_keys, manifest, auditor.trust)
        return Published.read(client, None, manifest, keys or (log,))
    except VerificationError as error:
        return error


def fetch_group(
    auditor: Auditor,
    client: Client,
    seed: bytes,
    turns: int | None,
    waiting: deque[Fetched],
    most: int,
) -> list[Fetched]:
    """The next of the sessions that wait, at most `most` and little more than `GROUP_BYTES` of evidence."""
    group: list[Fetched] = []
    size = 0
    while waiting and len(group) < most and size < GROUP_BYTES:
        wanted = waiting.popleft()
        try:
            if turns is not None and wanted.listed is not None:
                drawn = _draw_turns(auditor, client, seed, wanted.listed, turns)
                wanted.turns = None if drawn is None else wanted.with_own(drawn, turns)
        except VerifiableError as error:
            wanted.error = error
        else:
            fetch(auditor, client, wanted)
        group.append(wanted)
        size += 0 if wanted.evidence is None else len(wanted.evidence.data)
    return group


def _draw_turns(auditor: Auditor, client: Client, seed: bytes, listed: Listed, turns: int) -> list[int] | None:
    """Turns of a session; its receipt tells how many there are. All of them where there is none to be had.

    An interrupted session has no receipt that holds; its evidence then shows that.
    """
    try:
        return draw_turns(seed, listed.session, count_turns(auditor, client, listed), turns)
    except VerificationError as error:
        if error.code not in ("unreachable", "incomplete", "interrupted"):
            raise
        return None
