//! A database that does nothing but what a test has it do.

use std::sync::Arc;
use std::time::Instant;

use nucleo_runtime::JobError;
use nucleo_runtime::admission::{CountingGate, DatabaseGate};
use nucleo_runtime::db::{Abort, DbManagedResource, DbResourceProvider};

type Hook = Box<dyn Fn() + Send + Sync>;

/// One connection, named `stuck`. A hook may be stuck.
pub(crate) struct HookedDatabase {
    pub(crate) gate: Arc<DatabaseGate>,
    pub(crate) on_commit: Hook,
    pub(crate) on_close: Hook,
    pub(crate) on_abort: Hook,
}

impl Default for HookedDatabase {
    fn default() -> Self {
        Self {
            gate: Arc::new(CountingGate::database("stuck", 1).unwrap()),
            on_commit: Box::new(|| {}),
            on_close: Box::new(|| {}),
            on_abort: Box::new(|| {}),
        }
    }
}

#[derive(Clone)]
pub(crate) struct HookedHandle;

impl DbManagedResource for HookedHandle {
    fn provider(&self) -> &str {
        "stuck"
    }
}

impl DbResourceProvider for HookedDatabase {
    type Handle = HookedHandle;

    fn name(&self) -> &str {
        "stuck"
    }

    fn admission(&self) -> Arc<DatabaseGate> {
        Arc::clone(&self.gate)
    }

    fn acquire(&self, _: bool, _: Option<Instant>) -> Result<HookedHandle, JobError> {
        Ok(HookedHandle)
    }

    fn begin(&self, _: &HookedHandle) -> Result<(), JobError> {
        Ok(())
    }

    fn commit(&self, _: &HookedHandle) -> Result<(), JobError> {
        (self.on_commit)();
        Ok(())
    }

    fn await_visible(&self, _: &HookedHandle) -> Result<(), JobError> {
        Ok(())
    }

    fn rollback(&self, _: &HookedHandle) -> Result<(), JobError> {
        Ok(())
    }

    fn close(&self, _: &HookedHandle) -> Result<(), JobError> {
        (self.on_close)();
        Ok(())
    }

    fn abort(&self, _: &HookedHandle, _: Instant) -> Result<Abort, JobError> {
        (self.on_abort)();
        Ok(Abort::Severed)
    }
}
