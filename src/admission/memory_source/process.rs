//! The process's resident set, against what it may have.

use std::io;

use super::MemorySource;
use crate::admission::memory::MemoryReading;
use crate::error::JobError;

/// The resident set of this process against the tightest of its control group's limit (version 1
/// or 2) and physical memory.
///
/// The limit is read once, when this is made. See [`memory_source`](super) for what a resident set
/// cannot tell. Linux only.
#[derive(Debug)]
pub struct ProcessMemory {
    resident: ResidentSet,
    capacity: u64,
}

impl ProcessMemory {
    /// Finds the limit and opens what the resident set is read from.
    ///
    /// # Errors
    /// `System` where there is no `/proc` to read from, or no limit to be found in it.
    pub fn new() -> Result<Self, JobError> {
        Ok(Self {
            resident: ResidentSet::open()?,
            capacity: machine_limit()?,
        })
    }

    /// The limit, in bytes.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.capacity
    }
}

impl MemorySource for ProcessMemory {
    fn read(&self) -> io::Result<MemoryReading> {
        Ok(MemoryReading::new(self.resident.bytes()?, self.capacity))
    }

    fn name(&self) -> &str {
        "resident set"
    }
}

/// The resident set of this process against a budget that the program gives itself.
///
/// See [`memory_source`](super) for what a resident set cannot tell. Linux only.
#[derive(Debug)]
pub struct FixedBudget {
    resident: ResidentSet,
    budget: u64,
}

impl FixedBudget {
    /// A budget of so many bytes.
    ///
    /// # Errors
    /// `InvalidInput` for zero; `System` where there is no `/proc` to read from.
    pub fn new(bytes: u64) -> Result<Self, JobError> {
        Ok(Self {
            budget: super::counting_allocator::positive(bytes)?,
            resident: ResidentSet::open()?,
        })
    }
}

impl MemorySource for FixedBudget {
    fn read(&self) -> io::Result<MemoryReading> {
        Ok(MemoryReading::new(self.resident.bytes()?, self.budget))
    }

    fn name(&self) -> &str {
        "resident set under a budget"
    }
}

fn unreadable(error: &io::Error) -> JobError {
    JobError::system(
        "memory source",
        format!("the resident set of this process cannot be read here: {error}"),
    )
}

#[cfg(target_os = "linux")]
mod system {
    use std::fs::{self, File};
    use std::io;
    use std::os::unix::fs::FileExt;

    use crate::error::JobError;

    /// The entry of the auxiliary vector that holds the size of a page.
    const AT_PAGESZ: usize = 6;
    /// What a page is where the vector cannot be read.
    const USUAL_PAGE: u64 = 4_096;

    /// `/proc/self/statm`, kept open: one `pread` a reading (0.4 us).
    #[derive(Debug)]
    pub(super) struct ResidentSet {
        statm: File,
        page: u64,
    }

    impl ResidentSet {
        pub(super) fn open() -> Result<Self, JobError> {
            let statm =
                File::open("/proc/self/statm").map_err(|error| super::unreadable(&error))?;
            let page = fs::read("/proc/self/auxv")
                .ok()
                .and_then(|vector| page_size(&vector))
                .unwrap_or(USUAL_PAGE);
            let resident = Self { statm, page };
            resident
                .bytes()
                .map_err(|error| super::unreadable(&error))?;
            Ok(resident)
        }

        pub(super) fn bytes(&self) -> io::Result<u64> {
            // Seven numbers of at most twenty digits.
            let mut text = [0; 160];
            let length = self.statm.read_at(&mut text, 0)?;
            let pages = text
                .get(..length)
                .and_then(resident_pages)
                .ok_or_else(|| io::Error::other("/proc/self/statm has no second number"))?;
            Ok(pages.saturating_mul(self.page))
        }
    }

    pub(super) fn resident_pages(statm: &[u8]) -> Option<u64> {
        let text = std::str::from_utf8(statm).ok()?;
        text.split_ascii_whitespace().nth(1)?.parse().ok()
    }

    pub(super) fn page_size(vector: &[u8]) -> Option<u64> {
        const WORD: usize = size_of::<usize>();
        let word = |bytes: &[u8]| Some(usize::from_ne_bytes(bytes.try_into().ok()?));
        vector
            .chunks_exact(2 * WORD)
            .find_map(|pair| {
                let (kind, value) = pair.split_at(WORD);
                (word(kind)? == AT_PAGESZ).then(|| word(value)).flatten()
            })
            .and_then(|size| u64::try_from(size).ok())
    }

    pub(super) fn total_memory(meminfo: &str) -> Option<u64> {
        let line = meminfo.lines().find(|line| line.starts_with("MemTotal:"))?;
        let kibibytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
        kibibytes.checked_mul(1_024)
    }

    /// The tightest of what the system and the control groups allow.
    pub(in crate::admission::memory_source) fn machine_limit() -> Result<u64, JobError> {
        let physical = fs::read_to_string("/proc/meminfo")
            .ok()
            .and_then(|text| total_memory(&text));
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let files =
            crate::cgroup::limit_files(&groups, "memory", "memory.max", "memory.limit_in_bytes");
        files
            .iter()
            // `max` is no number, and no limit.
            .filter_map(|path| fs::read_to_string(path).ok()?.trim().parse().ok())
            .chain(physical)
            .filter(|limit| *limit > 0)
            .min()
            .ok_or_else(|| {
                JobError::system(
                    "memory source",
                    "neither /proc/meminfo nor a control group tells how much memory there is: \
                     give a budget",
                )
            })
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use std::io;

    use crate::error::JobError;

    fn unsupported() -> io::Error {
        io::Error::new(
            io::ErrorKind::Unsupported,
            "only Linux tells it without unsafe code; use the counting allocator with a budget",
        )
    }

    #[derive(Debug)]
    pub(super) struct ResidentSet;

    impl ResidentSet {
        pub(super) fn open() -> Result<Self, JobError> {
            Err(super::unreadable(&unsupported()))
        }

        pub(super) fn bytes(&self) -> io::Result<u64> {
            Err(unsupported())
        }
    }

    pub(in crate::admission::memory_source) fn machine_limit() -> Result<u64, JobError> {
        Err(super::unreadable(&unsupported()))
    }
}

use system::ResidentSet;
pub(super) use system::machine_limit;

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn the_texts_that_linux_writes_are_read() {
        assert_eq!(
            system::resident_pages(b"8421 1543 1204 52 0 600 0\n"),
            Some(1_543)
        );
        assert_eq!(system::resident_pages(b"8421"), None);
        assert_eq!(
            system::total_memory("MemTotal:       16384 kB\nMemFree: 1 kB\n"),
            Some(16_777_216)
        );
        let vector: Vec<u8> = [3, 64, 6, 16_384, 0, 0]
            .into_iter()
            .flat_map(usize::to_ne_bytes)
            .collect();
        assert_eq!(system::page_size(&vector), Some(16_384));
        assert_eq!(system::page_size(&[]), None);
    }

    #[test]
    fn a_resident_set_rises_with_what_is_touched() {
        const BLOCK: usize = 64 << 20;
        let process = ProcessMemory::new().unwrap();
        let before = process.read().unwrap();
        assert!(before.used > 0 && before.used < before.capacity);
        let block = std::hint::black_box(vec![1_u8; BLOCK]);
        let after = process.read().unwrap();
        assert!(after.used >= before.used + BLOCK as u64 / 2);
        assert_eq!(after.capacity, process.capacity());
        drop(block);
    }

    #[test]
    fn a_budget_stands_in_for_the_limit() {
        let budget = FixedBudget::new(1 << 30).unwrap();
        assert_eq!(budget.read().unwrap().capacity, 1 << 30);
        let error = FixedBudget::new(0).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::InvalidInput { .. }));
    }
}
