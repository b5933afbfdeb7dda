//! The one seam for locks, condition variables, atomics and threads.
//!
//! Everything in the crate takes these from here, so that a model checker can stand in for the
//! real ones without touching the code that it checks.

pub(crate) use parking_lot::{Condvar, Mutex, RwLock};
pub(crate) use std::sync::atomic;
