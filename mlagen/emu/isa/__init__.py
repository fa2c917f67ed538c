"""The instructions: one small function each, registered by `mlagen.emu.interfaces.instruction`."""
