//! What a failure of the driver means, and what to do about it.

use std::path::Path;
use std::sync::Arc;

use rusqlite::{Error as DriverError, ErrorCode};

use crate::error::{ErrorKind, JobError};

/// The component of a driver error that nobody has placed yet.
const UNPLACED: &str = "sqlite";

/// The database that an error is about.
#[derive(Clone, Debug)]
pub(super) struct Subject {
    pub(super) name: Arc<str>,
    pub(super) path: Arc<Path>,
}

impl Subject {
    /// The driver's error as one of ours. Only what the database or its file is to blame for is a
    /// failure of a service; a statement that is wrong is not.
    pub(super) fn explain(&self, error: &DriverError, read_only: bool) -> JobError {
        let advice = match error.sqlite_error_code() {
            Some(ErrorCode::ReadOnly) if read_only => {
                return JobError::illegal_state(format!(
                    "a job that declared the database '{}' read-only wrote to it: leave out the \
                     declaration, or the write",
                    self.name
                ));
            }
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                "another connection kept it locked: find the process that holds a write \
                 transaction open, or raise `busy_wait`"
            }
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                "the file is not a sound database: restore it from a backup, or point the provider \
                 at another file"
            }
            Some(ErrorCode::CannotOpen | ErrorCode::PermissionDenied | ErrorCode::ReadOnly) => {
                "check that its directory exists and that this process may write there"
            }
            Some(ErrorCode::DiskFull | ErrorCode::SystemIoFailure) => {
                "check the disk that it lies on"
            }
            _ => {
                return JobError::uncorrectable(format!(
                    "the database '{}' refused the call: {error}",
                    self.name
                ));
            }
        };
        self.unusable(&format!("{error}; {advice}"))
    }

    /// The file cannot serve.
    pub(super) fn unusable(&self, details: &str) -> JobError {
        JobError::external(
            format!("database '{}'", self.name),
            format!("{}: {details}", self.path.display()),
        )
    }

    pub(super) fn driver_failure(&self, error: DriverError, read_only: bool) -> JobError {
        self.explain(&error, read_only).with_source(error)
    }

    /// Places an error of a job's own call: what came from the driver by `?` is told as for
    /// [`driver_failure`](Self::driver_failure), anything else is the job's own word.
    pub(super) fn place(&self, error: JobError, read_only: bool) -> JobError {
        let unplaced =
            matches!(error.kind(), ErrorKind::System { component, .. } if component == UNPLACED);
        let driver = std::error::Error::source(&error)
            .and_then(|source| source.downcast_ref::<DriverError>());
        match driver {
            Some(driver) if unplaced => self.explain(driver, read_only).with_source(error),
            _ => error,
        }
    }
}

impl From<DriverError> for JobError {
    /// A failure of component `sqlite`. Inside
    /// [`try_with`](super::SqliteHandle::try_with) the database at fault is filled in.
    fn from(error: DriverError) -> Self {
        JobError::system(UNPLACED, error.to_string()).with_source(error)
    }
}
