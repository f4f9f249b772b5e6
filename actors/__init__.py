"""The samplers' room: environments, stepping, acting, unrolls, the asyncio service."""
