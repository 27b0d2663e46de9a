//! Load generators and benches for eddy beside etcd. So far: `empty`, the ceiling of a tonic server.
