-- Undo a claim: leave the queue; what was granted or handed over meanwhile goes on to the next.
--
-- ARGV     1 token
-- Answers  0

-- include: _queue

leave_queue(ARGV[1])
if call('HGET', N, 'owner') == ARGV[1] then
  let_go(ARGV[1])
end
return 0
