//! Pure tests of this room: rules against kube-proxy's, and the ways between them on simulated tables.

mod facts;
mod golden;
mod oracle;
mod simulated;
mod ways;

use ferry_model::{Family, Plan};

use super::render::Style;
use crate::Likeness;

const STYLE: Style = Style {
    mark: 0x4000,
    random_fully: true,
    tcp_liberal: false,
    count_invalid: true,
    count_localhost: true,
    likeness: Likeness::Rules,
};

fn render(plan: &Plan, family: Family) -> String {
    super::render::render(plan, &super::context(plan, family, STYLE)).to_string()
}
