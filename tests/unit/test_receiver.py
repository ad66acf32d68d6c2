"""The receiver tells right signatures from wrong ones and repeats from new webhooks."""

from datetime import UTC, datetime

import httpx
from standardwebhooks import Webhook

from jobs.secrets import new_signing_secret
from trilane.stack.receiver import Receiver


def deliver(url: str, secret: str, webhook_id: str, body: str = '{"type":"job.succeeded"}') -> int:
    now = datetime.now(UTC)
    headers = {
        "webhook-id": webhook_id,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": Webhook(secret).sign(webhook_id, now, body),
    }
    return httpx.post(url, content=body, headers=headers).status_code


def test_a_right_signature_is_verified_and_a_repeat_counts_once() -> None:
    secret = new_signing_secret()
    with Receiver(secret) as receiver:
        assert deliver(receiver.url, secret, "msg_1") == 204
        assert deliver(receiver.url, secret, "msg_1") == 204
        assert deliver(receiver.url, secret, "msg_2") == 204
        assert receiver.wait_for(2, timeout_s=5.0)
        assert receiver.delivered == receiver.verified == {"msg_1", "msg_2"}
        assert len(receiver.deliveries) == 3


def test_a_wrong_or_missing_signature_is_told_apart() -> None:
    with Receiver(new_signing_secret()) as receiver:
        assert deliver(receiver.url, new_signing_secret(), "msg_1") == 401
        assert httpx.post(receiver.url, content="{}").status_code == 401
        broken = {"webhook-id": "msg_2", "webhook-timestamp": "x", "webhook-signature": "v1,?"}
        assert httpx.post(receiver.url, content="{}", headers=broken).status_code == 401
        assert receiver.verified == set()
        assert receiver.delivered == {"", "msg_1", "msg_2"}
        assert not receiver.wait_for(4, timeout_s=0.01)
