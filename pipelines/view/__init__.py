"""The view for administrators: a small HTTP service with the state of pipelines and analytics, and
its page.

In: offsets of the pipelines' groups, the store of analytics, the identity of callers (from a
    gateway).
Out: `/v1/pipelines`, `/v1/analytics` and the page; nothing is written.

    app       routes, answers, one process       callers   access, checked by a gateway
    watcher   observes every pipeline, one loop  status    what the observations say
    plots     results of analytics, by range     readers   the stores: a file, or a server
    queries   the queries to them                files     the built page
"""
