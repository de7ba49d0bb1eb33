"""The gate of a Kubernetes cluster: objects that are about to be made -> let in, refused or held.

In reading order: ``settings``, ``review``, ``quantities``, ``objects``, ``places``, ``cases``,
``asking``, ``judgement``, ``holding``, ``right_size``, ``patches``, ``gate``; the routes are
``http/routes/webhooks.py``. ``controller``, a program of its own, releases what was held;
``kueue``, another, answers the admission checks of Kueue. Both are ``rounds``.
"""
