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

-- include: _enter
