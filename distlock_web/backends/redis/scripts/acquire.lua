-- Take the lock if it is free and nobody waits; else join the queue, once, if asked to. The only script that does either.
-- Also says whether a lock was handed over meanwhile: then it is the caller's already.
--
-- ARGV     1 token  2 expire (ms)  3 '1' join the queue, '0' leave it  4 holder, for people
--          5 place: where this token stood before; '?': it may stand somewhere; '': nowhere
--          6 if given: join the queue only where fewer wait
-- Answers  now                                       ours, and `now` is the fence, too
--          {fence, now}                              ours
--          {0, now, recheck, remaining, place, unheard, holder, held}
--                                                    somebody else's: asking again before `recheck` ms cannot help;
--                                                    place: 0 if it is not in the queue;
--                                                    unheard: 1 if its process has no subscriber on this server; held: µs since it was taken
--          {0, now, remaining, remaining, 0, 0, holder, held, record}
--                                                    the same of what is done: nobody is in its queue

local token, expire, join, holder, place = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local now = clock()

-- One ZADD does three things, and `changed` counts those that it did (LT: only a lower score replaces one):
--   1  the floor of all fences, negated, is raised to now: not if the clock was set back
--   1  the name is listed: not if it is listed already, for then it is held, or waited for
--   2  the mark is put: to an index that is new, and has no TTL yet; or had it in an earlier quarter of a day. It never
--      moves without the floor. It counts twice, so that it is not mistaken for the name
-- 2 or 4: free, as far as the index knows; SET NX decides.
local stamp, ends, quarter = format('%d', now), format('%d', now + expire * 1000), format('-%d', now / QUARTER)
local changed = redis.pcall('ZADD', INDEX, 'LT', 'CH', '-' .. stamp, FENCES, ends, N, quarter, MARK, quarter, DOUBLE)
local refused = type(changed) == 'table' and changed -- by a full server, which knows what is done all the same
if refused then
  changed = 0
end
if changed == 4 or now % 64 == 0 or tonumber(expire) > 60000 then -- housekeeping: now and then
  call('ZREMRANGEBYSCORE', INDEX, '0', format('%d', now - 60000000)) -- ended a minute ago without a release
  call('PEXPIRE', INDEX, format('%d', math.max(call('PTTL', INDEX), expire + 86400000)))
end
if (changed == 2 or changed == 4) and place == '' and
  call('SET', N, token .. ' held ' .. stamp .. ' ' .. stamp .. ' - ' .. holder, 'NX', 'PX', expire) then
  return now
end

-- include: _queue

if changed > 2 then -- the mark is one of them
  keep_index(tonumber(expire))
end
local process = string.sub(token, 1, 16)
local line, entry = QUEUE .. ':' .. process, token .. ' ' .. expire .. ' ' .. holder
local lock = read()
local free = is_free(lock)
if lock and lock.record then
  call('ZREM', INDEX, N) -- the way of a free lock has listed it
  if place ~= '' then -- who did not hear that it is done: nobody would take what is handed over to it later
    leave(process, entry)
  end
  local left = math.max(call('PTTL', N), 1)
  return {0, now, left, left, 0, 0, lock.holder, now - lock.since, lock.record}
end
if refused then
  return refused
end
if lock and lock.token == token then
  if not holds(lock) then
    -- A copy of this that was lost on the way, after its owner gave the lock back.
    local left = math.max(call('PTTL', N), 1)
    return {0, now, left, left, 0, 0, lock.holder, now - lock.since}
  end
  list(live_at_least(N, expire))
  if lock.state == 'granted' then
    lock.state = 'contended' -- its owner knows: nobody gives it back as nobody's
    call('SET', N, text(lock), 'KEEPTTL')
  end
  return {lock.fence, now}
end

local share = lock and lock.shares and lock.shares[token]
if share then
  if not holds(share) then
    local left = math.max(math.ceil((share.ends - now) / 1000), 1)
    return {0, now, left, left, 0, 0, share.holder, now - share.since}
  end
  share.ends, share.state = math.max(share.ends, now + expire * 1000), 'held'
  keep_shares(put(lock, token, share))
  return {share.fence, now}
end

if admits(lock, token) then
  -- A holder that died gives nothing back: whoever finds the lock free hands it to the head.
  local before, others = lock and as_before(lock) or '-', false
  local waits = set_place(process)
  lock, others = hand_over(lock, now, before, 0, entry)
  if not others and admits(lock, token) then
    if waits then
      leave(process, entry)
    end
    if limit_of(token) > 1 then
      local _, fence = join_shares(lock, now, token, expire, 'held', holder)
      return {fence, now}
    end
    return {own(now, token, expire, 'contended', before, holder), now}
  end
  lock = read()
end

local remaining = free_in(lock, limit_of(token), now)
if not free then
  local ends = now + (lock.shares and math.max(call('PTTL', N), 1) or remaining) * 1000
  call('ZADD', INDEX, 'GT', format('%d', ends), N) -- it is not listed, or was put too early by this
end

-- Whether a process stands in the queue and listens. Else it has most likely died: it would stay there until the lock is
-- handed over, and each question would go through it. As there, its line stays: its next waiter that asks restores its place.
local function stands(other)
  if listens(other) then
    return true
  end
  call('ZREM', QUEUE, other)
end

-- Whether ARGV[6] others wait. Those of processes that no longer listen do not count: most likely they have died, and
-- whoever is refused for their sake would never have its turn. Nor is anybody refused the place that it has.
local function full()
  if tonumber(place) or call('ZSCORE', line, entry) then
    return false
  end
  local count, seen = call('ZCARD', line), {[process] = true}
  local processes = call('ZRANGE', QUEUE, '0', '-1')
  table.insert(processes, string.sub(lock.token, 1, 16)) -- it stands aside: see hand_over
  for _, other in ipairs(processes) do
    if not seen[other] and stands(other) then
      count = count + call('ZCARD', QUEUE .. ':' .. other)
    end
    seen[other] = true
  end
  return count >= tonumber(ARGV[6])
end

if join == '0' or (ARGV[6] and full()) then
  if place ~= '' then
    leave(process, entry)
  end
  if lock.shares then
    hand_over(lock, now, '-') -- those behind it may fit beside the holders
  end
  return {0, now, remaining, remaining, 0, 0, lock.holder, now - lock.since}
end
place = tonumber(place) or now
if call('ZADD', line, 'NX', format('%d', place), entry) == 0 then
  place = tonumber(call('ZSCORE', line, entry)) -- sent again: the place it has, not a later one
end
-- A key that was just made has no TTL: then nobody else is in it.
local line_left = call('PTTL', line)
local behind = line_left < 0 and 0 or call('ZRANK', line, entry)
if behind == 0 then
  call('ZADD', QUEUE, format('%d', place), process) -- a process stands where its first waiter does
elseif not call('ZSCORE', QUEUE, process) then
  set_place(process)
end
contend(lock)
-- Asleep until the lease ends, but not for longer than one of its own: then nothing that happens to the holder, to a
-- message or to those in front costs more than that. Each place adds a millisecond, so that an expiry wakes one, not all.
local queue_left = call('PTTL', QUEUE)
local ahead = (queue_left < 0 and 0 or call('ZRANK', QUEUE, process)) + behind
local recheck = math.min(remaining, tonumber(expire)) + math.min(ahead, 1000)
live_at_least(QUEUE, live_at_least(line, recheck + GRACE, line_left), queue_left)
-- So that a third of them, at most, has died: whoever makes them more comes behind others.
for _, other in ipairs(ahead > 0 and call('ZRANDMEMBER', QUEUE, '3') or {}) do
  if other ~= process then
    stands(other)
  end
end
return {0, now, recheck, remaining, place, listens(process) and 0 or 1, lock.holder, now - lock.since}
