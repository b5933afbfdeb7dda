//! Where the memory gate reads (`MEM`).
//!
//! | source | used | capacity |
//! |---|---|---|
//! | [`AllocatedMemory`] | what the program has allocated and not freed | a budget, or the machine's |
//! | [`ProcessMemory`] | the process's resident set | the tightest of its control group's limit and physical memory |
//! | [`FixedBudget`] | the process's resident set | a budget |
//! | [`ScriptedMemory`] | what a test says | what a test says |
//!
//! # Which one to take
//!
//! Take [`AllocatedMemory`] with the [`CountingAllocator`], if the program may choose its
//! allocator. It falls as soon as something is freed.
//!
//! A resident set does not tell what a program uses: allocators keep pages that they have freed,
//! above all those of many small blocks, and hand them out again later. It rises with the use and
//! may never fall. The gate then reads a level that no end of a job lowers; its line goes at the
//! pace of that level, and under the latch at the one job in 30 seconds that
//! [`memory_progress`](crate::JobDispatcherBuilder::memory_progress) lets through, each with an
//! error in the log.
//!
//! # What no source can tell
//!
//! What a job will take. Jobs that are let go together, before any of them has taken its memory,
//! are all let go on the reading before; the gate sees growth when it is there.

mod counting_allocator;
mod process;
mod scripted;

use std::io;
use std::sync::Arc;

use super::memory::MemoryReading;

pub use counting_allocator::{AllocatedMemory, CountingAllocator};
pub use process::{FixedBudget, ProcessMemory};
pub use scripted::ScriptedMemory;

/// Reads how much memory is in use, of how much.
///
/// It is read under the monitor's lock at every arrival, pass and settlement: it must be quick, and
/// must not block, log, publish, or call the runtime.
pub trait MemorySource: Send + Sync + 'static {
    /// One reading.
    ///
    /// # Errors
    /// When it cannot be read now. The last reading stands, and the status says so.
    fn read(&self) -> io::Result<MemoryReading>;

    /// What logs call it.
    fn name(&self) -> &str;
}

impl<S: MemorySource + ?Sized> MemorySource for Arc<S> {
    fn read(&self) -> io::Result<MemoryReading> {
        (**self).read()
    }

    fn name(&self) -> &str {
        (**self).name()
    }
}
