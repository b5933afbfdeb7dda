//! Memory that a test dictates.

use std::io;
use std::sync::Arc;

use super::MemorySource;
use crate::admission::memory::MemoryReading;
use crate::sync::Mutex;

/// A memory source whose readings a test sets. A clone is the same memory.
///
/// ```
/// use nucleo_runtime::admission::MemorySource;
/// use nucleo_runtime::testing::ScriptedMemory;
///
/// let memory = ScriptedMemory::new(100);
/// memory.set(96);
/// assert_eq!(memory.read()?.used, 96);
/// memory.fail("gone");
/// assert!(memory.read().is_err());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ScriptedMemory {
    state: Arc<Mutex<Result<MemoryReading, String>>>,
    capacity: u64,
}

impl ScriptedMemory {
    /// A memory of `capacity` bytes of which none are in use.
    #[must_use]
    pub fn new(capacity: u64) -> Self {
        Self {
            state: Arc::new(Mutex::new(Ok(MemoryReading::new(0, capacity)))),
            capacity,
        }
    }

    /// From now on `used` bytes are in use. The gate learns of it at its next look.
    pub fn set(&self, used: u64) {
        *self.state.lock() = Ok(MemoryReading::new(used, self.capacity));
    }

    /// From now on it cannot be read, until it is set again.
    pub fn fail(&self, why: &str) {
        *self.state.lock() = Err(why.to_owned());
    }
}

impl MemorySource for ScriptedMemory {
    fn read(&self) -> io::Result<MemoryReading> {
        self.state.lock().clone().map_err(io::Error::other)
    }

    fn name(&self) -> &str {
        "script"
    }
}
