//! Objects in namespaces that do not exist are counted.

use crate::support::build::{delete_op, put};
use crate::support::world::World;
use eddy_crdt::{Command, Replica};

fn object(kind: &str, namespace: &str) -> String {
    format!(r#"{{"apiVersion":"v1","kind":"{kind}","metadata":{{"name":"a","namespace":"{namespace}","uid":"u"}}}}"#)
}

/// Counted in looks at so many keys each.
fn counted(replica: &Replica, max: usize) -> u64 {
    let (mut count, mut after) = (0, None);
    loop {
        let found = replica.strays(after.as_ref(), max);
        count += found.count;
        match found.next {
            Some(next) => after = Some(next),
            None => return count,
        }
    }
}

#[test]
fn what_one_site_creates_in_a_namespace_that_another_deletes_is_counted_at_both() {
    let mut world = World::new(2);
    let namespace = r#"{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"shop","uid":"n"}}"#;
    let protobuf = b"k8s\0\n\x0c\n\x02v1\x12\x06Secret\x12\x0b\n\x09\n\x01a\x1a\x04shop\x1a\0\"\0";
    world.run(0, put("/registry/namespaces/shop", namespace)).unwrap();
    world.run(0, put("/registry/configmaps/shop/old", object("ConfigMap", "shop"))).unwrap();
    world.run(0, put("/registry/namespaces/default", namespace)).unwrap();
    world.run(0, put("/registry/configmaps/default/a", object("ConfigMap", "default"))).unwrap();
    // Of the cluster, whatever its key looks like.
    world.run(0, put("/registry/clusterroles/a", r#"{"apiVersion":"v1","kind":"A","metadata":{"name":"a"}}"#)).unwrap();
    world.run(0, put("/elsewhere/configmaps/none/a", object("ConfigMap", "none"))).unwrap();
    world.tell_all().unwrap();
    assert_eq!(counted(&world.nodes[0].replica, 1000), 0);
    world.run(0, put("/registry/configmaps/shop/new", object("ConfigMap", "shop"))).unwrap();
    world.run(0, put("/registry/secrets/shop/a", protobuf)).unwrap();
    world.run(1, Command::Delete(delete_op("/registry/configmaps/shop/old"))).unwrap();
    world.run(1, Command::Delete(delete_op("/registry/namespaces/shop"))).unwrap();
    assert_eq!(counted(&world.nodes[0].replica, 1000), 0);
    world.tell_all().unwrap();
    for node in &world.nodes {
        for max in [1, 2, 3, 1000] {
            assert_eq!(counted(&node.replica, max), 2, "looks at {max}");
        }
    }
}
