//! The one seam for locks, condition variables, atomics and threads.
//!
//! Everything in the crate takes these from here, so that a model checker can stand in for the
//! real ones without touching the code that it checks: under `--cfg nucleo_model` they are
//! shuttle's, which tries the interleavings. It models no channel and no wait that times out, so
//! what is checked runs on a `ManualClock`, whose waits do not.

#[cfg(not(nucleo_model))]
mod real {
    pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
    pub(crate) use std::sync::atomic;
    pub(crate) use std::thread;
    pub(crate) use std::thread_local;
}

#[cfg(nucleo_model)]
mod modelled;

#[cfg(nucleo_model)]
pub(crate) use modelled::*;
#[cfg(not(nucleo_model))]
pub(crate) use real::*;
