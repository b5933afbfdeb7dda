//! A database that does nothing but note what it is asked.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use nucleo_runtime::JobError;
use nucleo_runtime::admission::{CountingGate, DatabaseGate};
use nucleo_runtime::db::{Abort, DbManagedResource, DbResourceProvider};

use super::log::Log;

/// What an operation does instead of succeeding.
#[derive(Clone, Copy)]
pub enum Fault {
    Error,
    Panic,
}

pub struct Recording {
    name: String,
    gate: Arc<DatabaseGate>,
    log: Log,
    faults: Mutex<HashMap<&'static str, Fault>>,
}

#[derive(Clone)]
pub struct RecordingHandle {
    provider: String,
}

impl Recording {
    /// A database that serves one job at a time and notes `<name>.<operation>`.
    pub fn new(name: &str, log: &Log) -> Self {
        Self {
            name: name.to_owned(),
            gate: Arc::new(CountingGate::database(name, 1).unwrap()),
            log: log.clone(),
            faults: Mutex::default(),
        }
    }

    /// Has `operation` go wrong from now on.
    pub fn with(self, operation: &'static str, fault: Fault) -> Self {
        self.faults.lock().unwrap().insert(operation, fault);
        self
    }

    fn note(&self, operation: &'static str) -> Result<(), JobError> {
        self.log.note(format!("{}.{operation}", self.name));
        let fault = self.faults.lock().unwrap().get(operation).copied();
        match fault {
            None => Ok(()),
            Some(Fault::Error) => Err(JobError::external(
                self.name.as_str(),
                format!("{operation} failed"),
            )),
            Some(Fault::Panic) => panic!("{operation} panicked"),
        }
    }
}

impl DbManagedResource for RecordingHandle {
    fn provider(&self) -> &str {
        &self.provider
    }
}

impl DbResourceProvider for Recording {
    type Handle = RecordingHandle;

    fn name(&self) -> &str {
        &self.name
    }

    fn admission(&self) -> Arc<DatabaseGate> {
        Arc::clone(&self.gate)
    }

    fn acquire(&self, _: bool, _: Option<Instant>) -> Result<RecordingHandle, JobError> {
        self.note("acquire")?;
        Ok(RecordingHandle {
            provider: self.name.clone(),
        })
    }

    fn begin(&self, _: &RecordingHandle) -> Result<(), JobError> {
        self.note("begin")
    }

    fn commit(&self, _: &RecordingHandle) -> Result<(), JobError> {
        self.note("commit")
    }

    fn await_visible(&self, _: &RecordingHandle) -> Result<(), JobError> {
        self.note("await")
    }

    fn rollback(&self, _: &RecordingHandle) -> Result<(), JobError> {
        self.note("rollback")
    }

    fn close(&self, _: &RecordingHandle) -> Result<(), JobError> {
        self.note("close")
    }

    fn abort(&self, _: &RecordingHandle, _: Instant) -> Result<Abort, JobError> {
        self.note("abort")?;
        Ok(Abort::Severed)
    }
}
