"""Runs a handler: executor, context, ctx.transaction, ctx.cpu, event loop."""
