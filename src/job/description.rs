//! What a job says of itself: asked once, at its submission, on the submitter's thread (`ID-6`).

use std::time::Duration;

use super::identity::JobType;
use crate::guard::Protection;

/// The timeout of a job that does not set one (ID-3).
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30 * 60);
/// How often a job is run again for its provider's sake, unless it says otherwise (ID-3, RR-2).
pub const DEFAULT_UPSTREAM_RETRIES: u32 = 3;

/// The answers, together.
#[derive(Debug)]
pub(crate) struct Description {
    pub(crate) type_path: &'static str,
    pub(crate) id_prefix: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) display_name: Option<String>,
    pub(crate) action: String,
    pub(crate) description: Option<String>,
    pub(crate) job_type: JobType,
    pub(crate) priority: i32,
    pub(crate) upstream_retries: u32,
    pub(crate) timeout: Option<Duration>,
    pub(crate) protection: Protection,
}

/// The descriptive methods that jobs and doers have in common, each with its default.
macro_rules! descriptive_methods {
    ($job_type:expr) => {
        /// The path of the job's type; its last segment, generics trimmed, is the type's simple
        /// name. The compiler's name for the type unless the job says otherwise.
        fn type_path(&self) -> &'static str {
            std::any::type_name::<Self>()
        }

        /// What the job's id starts with. The type's simple name unless the job says otherwise.
        fn id_prefix(&self) -> Option<String> {
            None
        }

        /// The job's name. `<type>-<id>` unless the job says otherwise.
        fn name(&self) -> Option<String> {
            None
        }

        /// The name to show to people. The type's simple name unless the job says otherwise.
        fn display_name(&self) -> Option<String> {
            None
        }

        /// What the job does, in a word or two. Empty unless the job says otherwise.
        fn action(&self) -> String {
            String::new()
        }

        /// A sentence about the job. None unless the job says otherwise.
        fn description(&self) -> Option<String> {
            None
        }

        /// The role that the job plays, for people and reports.
        fn job_type(&self) -> $crate::job::JobType {
            $job_type
        }

        /// In the priority queue a higher one goes first. 0 unless the job says otherwise.
        fn priority(&self) -> i32 {
            0
        }

        /// What the job was asked to do, for guards and scopes to judge; work from the same value.
        /// None unless the job says otherwise.
        fn input(&self) -> Option<std::sync::Arc<dyn $crate::guard::JobInput>> {
            None
        }

        /// What the job is bound to. The flow that it runs in judges it; what it submits is bound
        /// to both. None unless the job says otherwise.
        fn scope(&self) -> Option<std::sync::Arc<dyn $crate::guard::Scope>> {
            None
        }

        /// Who judges the job's input, output and callers. Nobody unless the job says otherwise.
        fn guards(&self) -> $crate::guard::Guards {
            $crate::guard::Guards::none()
        }
    };
}

/// Passes the descriptive methods on to the value that a pointer holds.
macro_rules! forward_descriptive_methods {
    () => {
        fn type_path(&self) -> &'static str {
            (**self).type_path()
        }
        fn id_prefix(&self) -> Option<String> {
            (**self).id_prefix()
        }
        fn name(&self) -> Option<String> {
            (**self).name()
        }
        fn display_name(&self) -> Option<String> {
            (**self).display_name()
        }
        fn action(&self) -> String {
            (**self).action()
        }
        fn description(&self) -> Option<String> {
            (**self).description()
        }
        fn job_type(&self) -> $crate::job::JobType {
            (**self).job_type()
        }
        fn priority(&self) -> i32 {
            (**self).priority()
        }
        fn input(&self) -> Option<std::sync::Arc<dyn $crate::guard::JobInput>> {
            (**self).input()
        }
        fn scope(&self) -> Option<std::sync::Arc<dyn $crate::guard::Scope>> {
            (**self).scope()
        }
        fn guards(&self) -> $crate::guard::Guards {
            (**self).guards()
        }
    };
}

pub(crate) use {descriptive_methods, forward_descriptive_methods};
