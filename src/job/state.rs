//! The states of a job and what they mean (`ST-1`).

use std::fmt;

/// Where a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub enum JobState {
    /// Submitted; waits for dependencies or a thread.
    Queued,
    /// Accepted by the dispatcher and announced.
    Scheduled,
    /// Holds what it needs and executes.
    Running,
    /// Told to stop before it finished. Terminal.
    Cancelled,
    /// Finished with a result. Terminal.
    Completed,
    /// Finished with an error. Terminal.
    Failed,
    /// Its timeout passed. Terminal.
    TimedOut,
    /// An orchestrator that waits for its next piece of work.
    Idle,
}

impl JobState {
    /// Whether the job has ended; there is no way out of a terminal state.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        matches!(
            self,
            Self::Cancelled | Self::Completed | Self::Failed | Self::TimedOut
        )
    }

    /// Whether the job has not ended; the opposite of [`is_terminal`](Self::is_terminal).
    #[must_use]
    pub const fn is_active(self) -> bool {
        !self.is_terminal()
    }

    /// Whether the job ended in failure. A cancellation is none.
    #[must_use]
    pub const fn is_failure(self) -> bool {
        matches!(self, Self::Failed | Self::TimedOut)
    }

    /// Whether the job ended with a result.
    #[must_use]
    pub const fn is_success(self) -> bool {
        matches!(self, Self::Completed)
    }
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Queued => "QUEUED",
            Self::Scheduled => "SCHEDULED",
            Self::Running => "RUNNING",
            Self::Cancelled => "CANCELLED",
            Self::Completed => "COMPLETED",
            Self::Failed => "FAILED",
            Self::TimedOut => "TIMED_OUT",
            Self::Idle => "IDLE",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::JobState::{self, *};

    // case ID-12
    #[test]
    fn a_state_is_terminal_or_active_and_only_two_are_failures() {
        const ALL: [JobState; 8] = [
            Queued, Scheduled, Running, Cancelled, Completed, Failed, TimedOut, Idle,
        ];
        for state in ALL {
            assert_eq!(state.is_terminal(), !state.is_active());
            assert_eq!(
                state.is_terminal(),
                [Completed, Failed, Cancelled, TimedOut].contains(&state)
            );
            assert_eq!(state.is_failure(), [Failed, TimedOut].contains(&state));
            assert_eq!(state.is_success(), state == Completed);
        }
    }
}
