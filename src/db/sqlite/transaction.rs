//! The runtime's transaction on a session.
//!
//! # Invariants
//!
//! 1. A commit answers success only when SQLite committed what the runtime began: not when a
//!    failed statement or the job ended the transaction before.
//! 2. After a rollback, and after the end of the session, no transaction is open.

use super::session::Session;
use crate::error::JobError;

impl Session {
    pub(super) fn begin(&self) -> Result<(), JobError> {
        let mut lent = self.lend()?;
        let subject = self.subject();
        if self.has_begun() {
            let refusal = JobError::illegal_state(format!(
                "a transaction on the database '{}' is begun already",
                subject.name
            ));
            return self.settle(lent, Err(refusal));
        }
        // A deferred transaction that turns to writing fails at once when another wrote meanwhile,
        // whatever the busy handler says: a writer locks at its beginning.
        let sql = if self.read_only() {
            "BEGIN DEFERRED"
        } else {
            "BEGIN IMMEDIATE"
        };
        let result = lent
            .connection()
            .and_then(|connection| connection.execute_batch(sql))
            .map_err(|error| subject.driver_failure(error, self.read_only()));
        if result.is_ok() {
            self.set_begun(true);
        }
        self.settle(lent, result)
    }

    pub(super) fn commit(&self) -> Result<(), JobError> {
        let mut lent = self.lend()?;
        if !self.has_begun() {
            return self.settle(lent, Ok(()));
        }
        let subject = self.subject();
        let result = match lent.connection() {
            Ok(connection) if connection.is_autocommit() => {
                self.set_begun(false);
                Err(JobError::illegal_state(format!(
                    "the transaction on the database '{}' is gone before its commit: a failed \
                     statement or the job itself ended it",
                    subject.name
                )))
            }
            Ok(connection) => connection
                .execute_batch("COMMIT")
                .map_err(|error| subject.driver_failure(error, self.read_only())),
            Err(error) => Err(subject.driver_failure(error, self.read_only())),
        };
        if result.is_ok() {
            self.set_begun(false);
        }
        self.settle(lent, result)
    }

    /// Rolls back whatever is open; a session that has ended rolled back at its end.
    pub(super) fn rollback(&self) -> Result<(), JobError> {
        let lent = match self.lend() {
            Ok(lent) => lent,
            Err(_) if self.has_ended() => return Ok(()),
            Err(inside_a_call) => return Err(inside_a_call),
        };
        let result = lent.rollback();
        self.set_begun(false);
        let result = result.map_err(|error| self.subject().driver_failure(error, self.read_only()));
        self.settle(lent, result)
    }
}
