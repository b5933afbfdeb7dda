//! What users test their own jobs, limits and providers with.

pub mod account_contract;
pub mod db_provider_contract;
