#!/usr/bin/env bash
# Walks through acknowledgement with curl: a lock, who it keeps out, how it expires, a plain pop.
# Start `ackflow serve` first. ACKFLOW_URL says where it is, TTL how long the short lock lasts.
set -euo pipefail

URL="${ACKFLOW_URL:-http://localhost:8000}"
TTL="${TTL:-5}"
MAIN="$URL/queue/flow-my-queue"
TEST="$URL/queue/flow-test"

# post STATUS URL [BODY]: post it, show the answer, leave it in $answer; end if the status is another.
post() {
    local expected="$1" url="$2" body="${3:-}" got
    got=$(curl -sS -X POST "$url" -d "$body" -w '\n%{http_code}')
    answer="${got%$'\n'*}"
    echo "  POST ${url#"$URL"} $body"
    echo "  ${got##*$'\n'} $answer"
    if [ "${got##*$'\n'}" != "$expected" ]; then
        echo "expected status $expected" >&2
        exit 1
    fi
}

# shows TEXT: end unless the answer has this in it.
shows() {
    if ! grep -qF -- "$1" <<<"$answer"; then
        echo "expected $1 in the answer" >&2
        exit 1
    fi
}

# field NAME: print a field of the answer.
field() {
    python3 -c 'import json, sys; print(json.loads(sys.argv[1])[sys.argv[2]])' "$answer" "$1"
}

echo "Example 1: pop with acknowledgement"
post 200 "$MAIN/push" '{"item": {"task_id": 123, "action": "send_email"}}'
post 200 "$MAIN/pop?require_ack=true"
shows '"items":[{"task_id": 123, "action": "send_email"}]'
shows '"locked":true'
post 200 "$MAIN/acknowledge" "{\"lock_id\": \"$(field lock_id)\"}"
shows '"success":true'
shows '"items_acknowledged":1'

echo "Example 2: a lock keeps others out"
post 200 "$TEST/push" '{"item": "original"}'
post 200 "$TEST/push" '{"item": "second"}'
post 200 "$TEST/pop?require_ack=true"
shows '"items":["original"]'
lock_id=$(field lock_id)
post 423 "$TEST/pop"
shows '"message":"Queue is locked'
shows '"lock_expires_at":'
post 400 "$TEST/acknowledge" '{"lock_id": "not-the-lock"}'
post 200 "$TEST/release" "{\"lock_id\": \"$lock_id\"}"

echo "Example 3: a lock expires by itself"
post 200 "$TEST/pop?require_ack=true&ttl_seconds=$TTL"
shows '"items":["original"]'
lock_id=$(field lock_id)
echo "  waiting until the lock is over"
sleep "$TTL.2"
post 410 "$TEST/acknowledge" "{\"lock_id\": \"$lock_id\"}"
shows '"error_code":"LOCK_EXPIRED"'
post 200 "$TEST/pop?require_ack=true"
shows '"items":["original"]'
post 200 "$TEST/acknowledge" "{\"lock_id\": \"$(field lock_id)\"}"

echo "Example 4: a plain pop needs no acknowledgement"
post 200 "$TEST/pop"
shows '"items":["second"]'
post 200 "$TEST/pop"
shows '"count":0'

echo "All examples answered as expected"
