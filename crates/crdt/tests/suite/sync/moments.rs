//! What is known of a member at two moments must not be put together.

use std::collections::BTreeMap;

use crate::support::world::World;

const MAP: &str = "/registry/configmaps/m";

fn object(data: &BTreeMap<String, String>) -> String {
    let data: Vec<String> = data.iter().map(|(name, value)| format!("\"{name}\":\"{value}\"")).collect();
    let data = data.join(",");
    format!(r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"m"}},"data":{{{data}}}}}"#)
}

/// What a node shows of the data of the object.
fn data(world: &World, node: usize) -> BTreeMap<String, String> {
    let value = world.nodes[node].get(MAP).expect("it is there");
    let (_, data) = value.split_once(r#""data":{"#).expect("it has data");
    let (data, _) = data.split_once('}').expect("they end");
    let pairs = data.split(',').filter_map(|pair| pair.split_once(':'));
    pairs.map(|(name, value)| (name.replace('"', ""), value.replace('"', ""))).collect()
}

/// Sets one of them, on top of what a node shows.
fn set(world: &mut World, node: usize, name: &str, to: &str) {
    let mut data = data(world, node);
    data.insert(name.to_owned(), to.to_owned());
    world.put(node, MAP, object(&data));
}

/// The second sends the third what it has, among it a version that sets an item. Then it sets the item anew, and tells the
/// first. The link to the third breaks, which sets another item on top of the older version. The first has heard that the
/// second has what stands for that version. It must not take that together with what the second said before of its marks:
/// that it sent the third nothing of it. `before`: how often the object was written before; the others: in which step what happens.
fn run(before: usize, again: usize, cut: usize) {
    let mut world = World::mesh(3);
    world.put(0, MAP, object(&BTreeMap::from([("mine".to_owned(), "0".to_owned())])));
    world.pass(2_000);
    world.part(0, 2);
    world.part(1, 2);
    world.pass(300);
    for n in 0..before {
        set(&mut world, 1, "often", &n.to_string());
        world.pass(300);
    }
    set(&mut world, 1, "item", "older");
    world.pass(300);
    world.connect(1, 2);
    for step in 0..=again.max(cut) {
        if step == again {
            set(&mut world, 1, "item", "newer");
        }
        if step == cut {
            world.part(1, 2);
            set(&mut world, 2, "mine", "1");
        }
        world.step();
    }
    world.pass(50);
    set(&mut world, 0, "other", "1");
    world.pass(1_000);
    world.connect(0, 2);
    world.connect(1, 2);
    world.converge();
    for node in 0..3 {
        let shown = data(&world, node);
        let shown = ["item", "mine", "other"].map(|name| shown.get(name).map(String::as_str));
        let meant = ["newer", "1", "1"].map(Some);
        assert_eq!(shown, meant, "{before} writes before, set again in step {again}, cut in step {cut}");
    }
}

#[test]
fn what_one_says_of_its_marks_goes_with_what_it_had_then() {
    for (before, again) in (0..10).flat_map(|before| (0..12).map(move |again| (before, again))) {
        for cut in again..again + 4 {
            run(before, again, cut);
        }
    }
}
