"""The view for administrators: a small HTTP service that says how pipelines and analytics are, and
the page that shows it.

In: offsets of the pipelines' groups, the store of analytics, who a caller is (asked of a gateway).
Out: `/v1/pipelines`, `/v1/analytics` and the page; nothing is written.

    app       routes, answers, one process       callers   who may see it: a gateway says
    watching  looks at every pipeline, one loop  status    what the looks say
    plots     the store of analytics, by range   queries   what is asked of it
    files     the built page
"""
