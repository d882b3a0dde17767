//! Files of Kubernetes and Istio as data. Applies nothing.

mod policy;

pub use policy::{
    ConnectionPool, HttpPool, LoadBalancer, OutlierDetection, Policy, PoolRule, PoolRules, Retries, RetryBudget,
    Simple, TcpPool,
};
