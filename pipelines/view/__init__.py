"""The view for administrators: a small HTTP service that says how pipelines and analytics are, and
the page that shows it.

In: offsets of the pipelines' groups, the store of analytics, who a caller is (asked of a gateway).
Out: `/v1/pipelines`, `/v1/analytics` and the page; nothing is written.

    app       routes, answers, one process       callers   who may see it: a gateway says
    watcher   observes every pipeline, one loop  status    what the observations say
    plots     results of analytics, by range     readers   the stores: a file, or a server
    queries   what is asked of them              files     the built page
"""
