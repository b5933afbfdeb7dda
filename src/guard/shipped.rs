//! The guards that come with the runtime (`GRD-7`).

mod allow_list;
mod payload_size;
mod pii;
mod url;

pub use allow_list::{AgentTypeAllowList, PrincipalAllowList};
pub use payload_size::PayloadSizeCap;
pub use pii::PiiDetection;
pub use url::UrlGuard;
