-- Take the lock if it is free and its queue empty; else join the queue, once, if asked to. The only script that does either.
-- Also says whether a lock was handed over meanwhile: then it is the caller's already.
--
-- ARGV     1 token  2 expire (ms)  3 '1' join the queue, '0' leave it  4 holder, for people
--          5 '1' it has been asked for with this token before, which may stand in the queue; '0' it has not
--          6 the place where it stood, or ''
--          7 if given: join the queue only where fewer wait
-- Answers  now                                       ours, and `now` is the fence, too
--          {fence, now}                              ours
--          {0, now, recheck, remaining, place, unheard, holder, held}
--                                                    another's: asking again before `recheck` ms cannot help;
--                                                    place: 0 if it is not in the queue;
--                                                    unheard: 1 if its process has no subscriber on this server; held: µs since it was taken
--          {0, now, remaining, remaining, 0, 0, holder, held, record}
--                                                    the same of what is done: its queue is empty

local token, expire, join, holder, asked, place, max_waiters =
  ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5] == '1', ARGV[6], ARGV[7]
local now = clock()

-- One ZADD does three things, and `changed` counts those that it did (LT: only a lower score replaces one):
--
--   the floor of all fences, negated, is raised to now     1, or 0: the clock was set back
--   the name is listed                                     1, or 0: it is listed, for it is held, or waited for
--   the mark is put, with its double                       2, or 0: it was put in this quarter of a day
--
--   changed   floor  name  mark
--   4         yes    yes   yes    free as far as the index knows, which is new or has had no TTL in this quarter
--   3         yes    -     yes    not free, the same
--   2         yes    yes   -      free as far as the index knows: the usual case
--   1         yes    -     -      not free
--   1         -      yes   -      the clock was set back; the mark never moves without the floor, so that 2 is no mark
--   0         -      -     -      the same, not free; or a full server has refused it
--
-- 2 or 4: SET NX decides.
local stamp, ends, quarter = format('%d', now), format('%d', now + expire * 1000), format('-%d', now / QUARTER)
local changed = redis.pcall('ZADD', INDEX, 'LT', 'CH', '-' .. stamp, FENCES, ends, N, quarter, MARK, quarter, DOUBLE)
local refused = type(changed) == 'table' and changed -- by a full server, which knows what is done all the same
if refused then
  changed = 0
end
if changed == 4 or now % 64 == 0 then -- housekeeping: now and then
  call('ZREMRANGEBYSCORE', INDEX, '0', format('%d', now - 60000000)) -- ended a minute ago without a release
  call('PEXPIRE', INDEX, format('%d', math.max(call('PTTL', INDEX), expire + 86400000)))
elseif tonumber(expire) > 60000 and call('PTTL', INDEX) < expire + 64800000 then -- as keep_index: it outlives what it lists
  call('PEXPIRE', INDEX, format('%d', expire + 86400000))
end
if (changed == 2 or changed == 4) and not asked and not string.find(token, '/', 1, true) and
  call('SET', N, token .. ' held ' .. stamp .. ' ' .. stamp .. ' - ' .. holder, 'NX', 'PX', expire) then
  return now
end

-- include: _queue

-- It is another's for `left` ms, and the caller is not in its queue.
local function taken(lock, left, record)
  return {0, now, left, left, 0, 0, lock.holder, now - lock.since, record}
end

if changed > 2 then -- the mark is one of them
  keep_index(tonumber(expire))
end
if changed > 1 then -- the floor is one of them: no fence before was as high
  highest = now - 1
end
local process = string.sub(token, 1, 16)
local entry = token .. ' ' .. expire .. ' ' .. holder
local lock = read()
local free = is_free(lock)

-- It is known to be taken until then (µs): the ZADD above may have listed it for less.
local function list_until(ends)
  if not free and ends >= now + expire * 1000 then
    call('ZADD', INDEX, 'GT', format('%d', ends), N)
  end
end

-- A copy of this that was lost on the way came after its owner gave the lock back: `known` is what is known of that.
local function refuse_copy(known, left, ends)
  if free then
    call('ZREM', INDEX, N) -- the way of a free lock has listed it
  end
  list_until(ends)
  return taken(known, left)
end

if lock and lock.record then
  call('ZREM', INDEX, N) -- the way of a free lock has listed it
  if asked then -- who did not hear that it is done: what is handed over to it later would not be taken
    leave(process, entry)
  end
  return taken(lock, math.max(call('PTTL', N), 1), lock.record)
end
if refused then
  return refused
end
if lock and lock.token == token then
  if not holds(lock) then
    local left = math.max(call('PTTL', N), 1)
    return refuse_copy(lock, left, now + left * 1000)
  end
  list(lock, live_at_least(N, expire))
  if lock.state == 'granted' then
    lock.state = 'contended' -- its owner knows: it is not given back as one without an owner
    call('SET', N, text(lock), 'KEEPTTL')
  end
  return {lock.fence, now}
end
local share = lock and lock.shares and lock.shares[token]
if share then
  if not holds(share) then
    return refuse_copy(share, math.max(math.ceil((share.ends - now) / 1000), 1), lock.last)
  end
  share.ends, share.state = math.max(share.ends, now + expire * 1000), 'held'
  keep_shares(put(lock, token, share))
  return {share.fence, now}
end

if admits(lock, token) then
  -- A holder that died gives nothing back: the caller that finds the lock free hands it to the head.
  local waits, others = set_place(process)
  lock, others = hand_over(lock, 0, entry)
  if not others and admits(lock, token) then
    if waits then
      leave(process, entry)
    end
    if limit_of(token) > 1 then
      local _, fence = join_shares(lock, token, expire, 'held', holder)
      return {fence, now}
    end
    return {own(lock, token, expire, 'contended', holder), now}
  end
  lock = read()
end

local remaining = free_in(lock, limit_of(token), now)
list_until(lock.shares and lock.last or now + remaining * 1000)

-- include: _join

if join == '0' or (max_waiters and is_full(lock, process, entry, place, tonumber(max_waiters))) then
  if asked then
    leave(process, entry)
  end
  if lock.shares then
    hand_over(lock) -- those behind it may fit beside the holders
  end
  return taken(lock, remaining)
end
contend(lock)
local recheck, stands_at, heard = join_queue(process, entry, tonumber(place) or now, math.min(remaining, tonumber(expire)))
return {0, now, recheck, remaining, stands_at, heard and 0 or 1, lock.holder, now - lock.since}
