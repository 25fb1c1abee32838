"""The queue: waiting requests, running ones, and whose turn is next.

    slots            which response may use the engine next
    shares           which part of the slots each principal may have; pure
    demand           how many tokens requests of each principal take of those they may; pure
    read_ahead       how far to read ahead, so that no principal hides another; pure
    delivery         one delivery of a request: where it was read, under which assignment; pure
    commit_tracker   which offset of a partition may be committed; pure
    workload         how much work is queued, and how fast the engine does it; pure
    hold_times       how long slots are held, and when they come free; pure
    start_forecast   how much of the queued work begins by when; pure
    waits            how long requests of each principal wait
    load             the queue's figures for the heartbeat
    offer_selection  which waiting requests are offered to idle workers; pure
    queue_publisher  writes to Redis where waiting requests stand, best effort

In: requests, ends, seconds. Out: turns and numbers. No file here reads or writes the log.
"""
