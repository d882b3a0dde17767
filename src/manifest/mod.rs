//! Files of Kubernetes and Istio as data. Applies nothing.

mod istio;
mod limits;
mod policy;
pub mod yaml;

pub use istio::{ManifestError, policy, policy_of};
pub use limits::PolicyError;
pub use policy::{
    ConnectionPool, HttpPool, LoadBalancer, OutlierDetection, Policy, PoolRule, PoolRules, Retries, RetryBudget,
    Simple, TcpPool,
};
