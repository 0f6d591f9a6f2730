-- include: _hand_over

-- How a lock is given back, or taken from its owner: by release, finish, cancel and revoke.

-- Whether another has the lock from now on, which its owner has released, or was revoked from.
local function pass_on(lock)
  -- To be revoked is no sign of life: the owner's other waiters stand in the queue again only where there is no other.
  if lock.state == 'revoked' and not is_free(hand_over(lock)) then
    return true
  end
  local process = string.sub(lock.token, 1, 16)
  local place = place_of(process)
  lock.aside = place and {process, place}
  return (place or lock.state ~= 'revoked') and not is_free(hand_over(lock))
end

-- The owner has released, or was revoked (`state`): hand the lock on, or leave it free with a tombstone for `ms`.
local function let_go(lock, state, ms)
  local alone = lock.state == 'held' -- else a claim may wait
  lock.state = state
  if alone or not pass_on(lock) then
    forget(lock, ms)
  end
end

-- The same of one that shares it. Those who wait may be too many still, and wait for the others' leases to end.
local function let_go_share(lock, token, state, ms)
  local share, known = lock.shares[token], lock
  lock = put(lock, token)
  if ms > 0 then
    lock = put(lock, token, {ends = clock() + ms * 1000, state = state, fence = share.fence, since = share.since, holder = '-'})
  end
  lock.kept = ms == 0 and known.last -- for how long N lives; a tombstone may have made it anew, without a TTL
  local process = string.sub(token, 1, 16)
  if state ~= 'revoked' then
    set_place(process)
  elseif share.state == 'granted' then -- and never heard of: its process hangs perhaps
    call('ZREM', QUEUE, process)
  end
  lock.leaver = ms == 0 and token or nil
  lock = hand_over(lock, known)
  if lock.shares and lock.last ~= lock.kept then
    keep_shares(lock)
  end
  if is_free(lock) then
    call('ZREM', INDEX, N)
  end
end

-- The owner has released, and the lock stays taken for `ms`, without an owner, and those who wait may have known of more.
local function cool_down(lock, token, ms)
  if lock.shares then
    local known, share = lock, lock.shares[token]
    share.state, share.ends = 'cooldown', clock() + ms * 1000
    lock = put(put(lock, token), token, share)
    keep_shares(lock)
    nudge(known, lock)
    return
  end
  local known = known_to_others(lock)
  lock.state = 'cooldown'
  write(lock, ms)
  list(lock, ms)
  if known then
    set_place(string.sub(token, 1, 16))
    nudge(known, ms)
  end
end

-- A release of one that does not hold the lock: a copy of one that was done, or too late. Answers as a release does.
local function told_late(lock, token, lost)
  -- It may have been handed the lock, so that the others of its process stand aside: now it has said something.
  allow_writes()
  set_place(string.sub(token, 1, 16))
  if is_free(lock) then
    hand_over(lock)
  end
  local share = lock and lock.shares and lock.shares[token]
  if share then
    return share.state == 'revoked' and 3 or 0
  end
  local done = lock and (was_before(lock, token) or (lock.token == token and lock.state ~= 'revoked'))
  return done and 0 or lost
end
