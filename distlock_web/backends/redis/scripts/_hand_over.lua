-- include: _queue
-- include: _news

-- What happens when a lock becomes free.

-- The first two processes of the queue. That of the owner who has gone (`lock.aside`) takes part again, by the place of its
-- first waiter: where that is in front it need not come into the queue, which it would leave at once.
local function heads(lock)
  local first, at, second = unpack(call('ZRANGE', QUEUE, '0', '1', 'WITHSCORES'))
  if not (lock and lock.aside) then
    return first, second
  end
  local own, place = unpack(lock.aside)
  lock.aside = nil
  if first == own then
    return first, second
  elseif not first or tonumber(place) < tonumber(at) then
    return own, first
  end
  allow_writes()
  stand_at(place, own)
  return first, own
end

-- The first process, whether another may stand behind it, and whether it has left the queue: one command asks and removes,
-- where no first waiter can be one that has to wait on.
local function next_process(lock, entry)
  if not entry and lock and not lock.shares and not lock.aside then
    local first = call('ZPOPMIN', QUEUE)[1]
    return first, first, true
  end
  return heads(lock)
end

-- The first waiters whose processes listen have the lock from now on, as far as it admits them, each for a whole lease and with
-- a new fence; then they are told. No waiter hears of a grant that was not made: who listens is asked before, and only of this
-- server. `known` is the lock as those who wait know it, or for how long (ms) it is taken; nil: as it is. Answers the lock,
-- free if none listens, and whether any stands in front of `entry`, who asks.
--
-- A process that was handed the lock stands aside with its other waiters until it says something (a release, a question):
-- if it is stopped or cut off, its lease ends, or is revoked, and the next one is not given to it as well. One that shares the
-- lock stands aside when its lease has ended so.
local function hand_over(lock, known, entry)
  local process, more, gone = next_process(lock, entry)
  local together = false
  while process do
    local line = QUEUE .. ':' .. process
    local head = (entry or (lock and lock.shares)) and call('ZRANGE', line, '0', '0')[1]
    local asking = head and head == entry
    -- No subscriber: it died, or is reconnecting. Its line stays for a while: its next waiter that asks restores its place.
    local hears = not asking and listens(process)
    local others = hears and head and not admits(lock, head)
    if asking or others then
      if known and lock and lock.shares then
        nudge(known, lock)
      end
      return lock, others
    end
    local first = hears and call('ZPOPMIN', line)[1]
    if not gone then -- else ZPOPMIN has allowed what follows
      allow_writes('ZREM', QUEUE, process)
    end
    if first then
      local token, expire, holder = string.match(first, '^(%S+) (%d+) (.*)$')
      together = limit_of(token) > 1
      known = known or (lock and lock.shares and not is_free(lock) and lock) or ((more or together) and call('PTTL', N))
      local fence
      if together then
        lock, fence = join_shares(lock, token, expire, 'granted', holder)
        more = set_place(process) or more
      else
        fence = own(lock, token, expire, 'granted', holder)
        lock = {state = 'granted'}
        if known then
          nudge(known, tonumber(expire))
        end
      end
      tell(process, token, format('%d', fence), format('%d', clock()))
      if not together then
        return lock, true
      end
    end
    if not more then
      return lock
    end
    process, more, gone = next_process(lock, entry)
  end
  return lock
end
