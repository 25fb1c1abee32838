"""The queue: what waits in this worker, what runs, and whose turn is next.

    slots            which response may use the engine next
    shares           which part of the slots each principal may have; pure
    demand           what the requests of each principal make of what they ask for; pure
    read_ahead       how far to read ahead, so that one principal hides no other; pure
    delivery         one delivery of a request: where it was read, under which assignment; pure
    commit_tracker   which offset of a partition may be committed; pure
    workload         how much work lies ahead, and how fast it is done; pure
    hold_times       how long slots are held, and when they come free; pure
    starts           how much of what waits will have begun by when; pure
    waits            how long requests of each principal wait; load: as heartbeats say it
    offers           which waiting requests are offered to idle workers; pure
    queue_teller     writes to Redis where waiting requests stand, best effort

In: requests, ends, seconds. Out: turns and numbers. No file here reads or writes the log.
"""
