//! An allocator that counts what it has handed out, as a source for the memory gate.
//!
//! The one file of the crate with `unsafe` in it: an allocator cannot be had without.
//!
//! # Invariants
//!
//! 1. The bytes handed out and not given back are `FLUSHED` plus the drifts of all threads.
//! 2. A thread's drift stays below 64 KiB either way: so a reading is off by less than that for
//!    each thread. When a thread ends its drift is flushed, and nothing of it is lost.
//! 3. Counting allocates nothing, takes no lock, and uses no thread-local with a destructor: it may
//!    run inside of any other code, the registration of a destructor included.
//!
//! Two shared counters would cost as many times what the allocation itself does as there are
//! processors at it; the drift costs some eight percent. The atomics are the standard library's:
//! an allocator runs below the locks that a model checker stands in for.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicI64, Ordering};

use super::MemorySource;
use crate::admission::memory::MemoryReading;
use crate::error::JobError;

/// How far a thread's count may be off before it is flushed.
const FLUSH_AT: u64 = 64 * 1024;

/// What has been flushed. One for the process, as its global allocator is.
static FLUSHED: AtomicI64 = AtomicI64::new(0);

std::thread_local! {
    static DRIFT: Cell<i64> = const { Cell::new(0) };
    /// Whether the end of this thread flushes.
    static ENROLLED: Cell<bool> = const { Cell::new(false) };
}

/// An allocator that counts the bytes that are out, for [`AllocatedMemory`] to read.
///
/// Install it over the system's allocator, or [`over`](Self::over) another:
///
/// ```
/// use nucleo_runtime::admission::memory_source::{AllocatedMemory, CountingAllocator};
/// use nucleo_runtime::admission::MemorySource;
///
/// #[global_allocator]
/// static ALLOCATOR: CountingAllocator = CountingAllocator::new();
///
/// let memory = AllocatedMemory::within(1 << 30)?;
/// let before = memory.read().unwrap().used;
/// let block = vec![0_u8; 1 << 20];
/// assert!(memory.read().unwrap().used >= before + (1 << 20));
/// drop(block);
/// # Ok::<(), nucleo_runtime::JobError>(())
/// ```
#[derive(Debug)]
pub struct CountingAllocator<A = System> {
    inner: A,
}

impl CountingAllocator {
    /// Counts what the system's allocator hands out.
    #[must_use]
    pub const fn new() -> Self {
        Self { inner: System }
    }
}

impl Default for CountingAllocator {
    fn default() -> Self {
        Self::new()
    }
}

impl<A> CountingAllocator<A> {
    /// Counts what another allocator hands out.
    #[must_use]
    pub const fn over(inner: A) -> Self {
        Self { inner }
    }
}

// SAFETY: every call goes on to the inner allocator as it came, and its answer comes back as it is;
// what is added is arithmetic on counters that neither unwinds nor allocates (invariant 3).
unsafe impl<A: GlobalAlloc> GlobalAlloc for CountingAllocator<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the promises of `alloc`, which are those of the inner one.
        let block = unsafe { self.inner.alloc(layout) };
        count_new(block, layout.size());
        block
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the promises of `alloc_zeroed`, which are those of the inner one.
        let block = unsafe { self.inner.alloc_zeroed(layout) };
        count_new(block, layout.size());
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the block came from the inner allocator with this layout, for all of ours do.
        unsafe { self.inner.dealloc(block, layout) };
        count(-bytes(layout.size()));
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: as for `dealloc`; the caller promises that the new size is a valid one.
        let moved = unsafe { self.inner.realloc(block, layout, new_size) };
        if !moved.is_null() {
            count(bytes(new_size) - bytes(layout.size()));
        }
        moved
    }
}

/// A block is at most `isize::MAX` bytes.
fn bytes(size: usize) -> i64 {
    size as i64
}

fn count_new(block: *mut u8, size: usize) {
    if !block.is_null() {
        count(bytes(size));
    }
}

fn count(change: i64) {
    // Where no end of a thread can be heard of, nothing may be left in one.
    if !exit::IS_HEARD {
        FLUSHED.fetch_add(change, Ordering::Relaxed);
        return;
    }
    let drift = DRIFT.get() + change;
    DRIFT.set(drift);
    if drift.unsigned_abs() >= FLUSH_AT {
        flush();
    }
    if !ENROLLED.get() {
        ENROLLED.set(true);
        exit::enroll();
    }
}

fn flush() {
    FLUSHED.fetch_add(DRIFT.replace(0), Ordering::Relaxed);
}

/// Hearing of a thread's end without a thread-local's destructor, whose registration allocates in
/// some versions of the standard library.
#[cfg(target_os = "linux")]
mod exit {
    use std::ffi::{c_int, c_uint, c_void};
    use std::ptr;
    use std::sync::atomic::{AtomicU64, Ordering};

    pub(super) const IS_HEARD: bool = true;

    type Destructor = unsafe extern "C" fn(*mut c_void);

    // SAFETY: the signatures are those of POSIX; on Linux a key is an unsigned int.
    unsafe extern "C" {
        fn pthread_key_create(key: *mut c_uint, destructor: Option<Destructor>) -> c_int;
        fn pthread_key_delete(key: c_uint) -> c_int;
        fn pthread_setspecific(key: c_uint, value: *const c_void) -> c_int;
    }

    /// The key, plus one; zero before there is one.
    static KEY: AtomicU64 = AtomicU64::new(0);

    /// Runs at the end of a thread, after its thread-locals' destructors. What is allocated later
    /// still enrolls the thread again.
    unsafe extern "C" fn flush_at_exit(_: *mut c_void) {
        super::ENROLLED.set(false);
        super::flush();
    }

    /// Has the calling thread flush when it ends. Without a key left its last drift is lost.
    pub(super) fn enroll() {
        let Some(key) = key() else { return };
        // Any value but null has the destructor called.
        let value = ptr::from_ref(&KEY).cast();
        // SAFETY: the key was created and is never deleted; the value is never read.
        unsafe { pthread_setspecific(key, value) };
    }

    fn key() -> Option<c_uint> {
        let known = KEY.load(Ordering::Acquire);
        if known != 0 {
            return c_uint::try_from(known - 1).ok();
        }
        let mut created: c_uint = 0;
        // SAFETY: `created` is valid for the write, and the destructor is a function of ours that
        // may run on any thread.
        if unsafe { pthread_key_create(&raw mut created, Some(flush_at_exit)) } != 0 {
            return None;
        }
        match KEY.compare_exchange(
            0,
            u64::from(created) + 1,
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            Ok(_) => Some(created),
            Err(first) => {
                // SAFETY: the key was created above, and nobody else has seen it.
                unsafe { pthread_key_delete(created) };
                c_uint::try_from(first - 1).ok()
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod exit {
    pub(super) const IS_HEARD: bool = false;

    pub(super) fn enroll() {}
}

/// What the [`CountingAllocator`] has handed out, against a budget or the machine's memory.
///
/// It counts what was asked for: neither what the allocator itself needs, nor stacks, nor what
/// other languages' libraries allocate. Leave them their part when the budget is chosen.
#[derive(Debug)]
pub struct AllocatedMemory {
    capacity: u64,
}

impl AllocatedMemory {
    /// Against a budget of so many bytes.
    ///
    /// # Errors
    /// `InvalidInput` for zero; `IllegalState` when the counting allocator is not installed.
    pub fn within(budget: u64) -> Result<Self, JobError> {
        let capacity = positive(budget)?;
        let before = total();
        let probe = std::hint::black_box(vec![0_u8; 64]);
        let counted = total() != before;
        drop(probe);
        if !counted {
            return Err(JobError::illegal_state(
                "the counting allocator counts nothing: install it with #[global_allocator]",
            ));
        }
        Ok(Self { capacity })
    }

    /// Against the tightest of the control group's limit and physical memory.
    ///
    /// # Errors
    /// As for [`within`](Self::within); `System` where the machine does not tell.
    pub fn within_machine() -> Result<Self, JobError> {
        Self::within(super::process::machine_limit()?)
    }
}

impl MemorySource for AllocatedMemory {
    fn read(&self) -> io::Result<MemoryReading> {
        // Less than nothing is out when threads that freed have flushed before those that took.
        let used = u64::try_from(total()).unwrap_or(0);
        Ok(MemoryReading::new(used, self.capacity))
    }

    fn name(&self) -> &str {
        "counting allocator"
    }
}

/// What is out, without the drifts of other threads.
fn total() -> i64 {
    FLUSHED.load(Ordering::Relaxed) + DRIFT.get()
}

pub(super) fn positive(budget: u64) -> Result<u64, JobError> {
    if budget == 0 {
        return Err(JobError::invalid_input(
            "budget",
            budget,
            "must be positive",
        ));
    }
    Ok(budget)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn without_the_allocator_there_is_no_source() {
        let error = AllocatedMemory::within(1 << 30).unwrap_err();
        assert!(error.to_string().contains("#[global_allocator]"), "{error}");
        let error = AllocatedMemory::within(0).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::InvalidInput { .. }));
    }
}
