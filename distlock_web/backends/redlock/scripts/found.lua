-- Say which node of which quorum this is, and from when on it forgets nothing: it votes when its delay has passed since.
--
-- ARGV     1 who it is, as in QUORUM  2 now (µs), by the clocks of the majority  3 µs that its own may be apart from that
--          4 'adopt': also if it is a node of another quorum until now, and from now on in any case; 'look': change nothing
-- Answers  {1, now} it is that node since now; {1, now, QUORUM, run} since before; {-1, now, '', run} nobody has said who it is;
--          {-2, now, QUORUM, run} another's; {0, now} its clock is another one, or this message is late: it would vote too soon

local now, who, run = clock(), ARGV[1], current_run(ARGV[1])
local known = call('GET', QUORUM)
if ARGV[4] ~= 'adopt' and known then
  local its, its_run = string.match(known, '^(.*) (%S+) %d+$')
  if its ~= who then
    return {-2, now, known, run_id()}
  elseif its_run == run then
    return {1, now, known, run_id()}
  end
end
if ARGV[4] == 'look' then
  return {-1, now, '', run_id()}
elseif math.abs(now - ARGV[2]) > tonumber(ARGV[3]) then
  return {0, now}
end
call('SET', QUORUM, format('%s %s %d', who, run, ARGV[2]), 'PX', format('%d', 30 * DAY))
return {1, now}
