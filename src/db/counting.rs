//! Only the count (`DB-4`).

use std::sync::Arc;
use std::time::Instant;

use super::{Abort, DbManagedResource, DbResourceProvider, foreign_handle};
use crate::admission::{AccountKey, CountingGate, DatabaseGate};
use crate::error::JobError;

/// The provider that depends on no database: it counts how many jobs use one at a time, and each
/// job takes its connections from the application's own stack when it needs them.
///
/// Size it to the pool behind it. A job of it has no transaction that the runtime would know of:
/// beginning, committing and closing do nothing.
///
/// ```
/// use nucleo_runtime::db::{CountingDbResourceProvider, DbResourceProvider};
///
/// let orders = CountingDbResourceProvider::new("orders", 3)?;
/// assert_eq!(orders.admission().name(), "db:orders");
/// # Ok::<(), nucleo_runtime::JobError>(())
/// ```
#[derive(Debug)]
pub struct CountingDbResourceProvider {
    name: Arc<str>,
    gate: Arc<DatabaseGate>,
}

/// The handle of a [`CountingDbResourceProvider`]: there is nothing in it.
#[derive(Clone, Debug)]
pub struct CountingHandle {
    provider: Arc<str>,
    owner: AccountKey,
}

impl CountingDbResourceProvider {
    /// A provider that lets `max_concurrent` jobs use the database at once.
    ///
    /// # Errors
    /// `InvalidInput` for a blank name or a bound of zero.
    pub fn new(name: &str, max_concurrent: u32) -> Result<Self, JobError> {
        if max_concurrent == 0 {
            return Err(JobError::invalid_input(
                "max_concurrent",
                max_concurrent,
                format!("the database '{name}' must serve at least one job"),
            ));
        }
        Ok(Self {
            name: name.into(),
            gate: Arc::new(CountingGate::database(name, max_concurrent)?),
        })
    }

    fn own(&self, handle: &CountingHandle) -> Result<(), JobError> {
        if handle.owner == *self.gate.key() {
            Ok(())
        } else {
            Err(foreign_handle(&self.name, handle))
        }
    }
}

impl DbManagedResource for CountingHandle {
    fn provider(&self) -> &str {
        &self.provider
    }
}

impl DbResourceProvider for CountingDbResourceProvider {
    type Handle = CountingHandle;

    fn name(&self) -> &str {
        &self.name
    }

    fn admission(&self) -> Arc<DatabaseGate> {
        Arc::clone(&self.gate)
    }

    fn acquire(&self, _: bool, _: Option<Instant>) -> Result<CountingHandle, JobError> {
        Ok(CountingHandle {
            provider: Arc::clone(&self.name),
            owner: self.gate.key().clone(),
        })
    }

    fn begin(&self, handle: &CountingHandle) -> Result<(), JobError> {
        self.own(handle)
    }

    fn commit(&self, handle: &CountingHandle) -> Result<(), JobError> {
        self.own(handle)
    }

    /// The job committed on a stack of its own before it ended, so there is nothing to wait for.
    fn await_visible(&self, handle: &CountingHandle) -> Result<(), JobError> {
        self.own(handle)
    }

    fn rollback(&self, handle: &CountingHandle) -> Result<(), JobError> {
        self.own(handle)
    }

    fn close(&self, handle: &CountingHandle) -> Result<(), JobError> {
        self.own(handle)
    }

    fn abort(&self, handle: &CountingHandle, _: Instant) -> Result<Abort, JobError> {
        self.own(handle)?;
        Ok(Abort::Severed)
    }
}
