//! Numbers of attributes; the kernel counts them again for each kind of object and of expression.

pub(super) const LIST_ITEM: u16 = 1;
pub(super) const TABLE_NAME: u16 = 1;
pub(super) const TABLE_FLAGS: u16 = 2;
pub(super) const TABLE_USERDATA: u16 = 6;
pub(super) const CHAIN_TABLE: u16 = 1;
pub(super) const CHAIN_NAME: u16 = 3;
pub(super) const CHAIN_HOOK: u16 = 4;
pub(super) const CHAIN_POLICY: u16 = 5;
pub(super) const CHAIN_TYPE: u16 = 7;
pub(super) const CHAIN_USERDATA: u16 = 12;
pub(super) const HOOK_NUMBER: u16 = 1;
pub(super) const HOOK_PRIORITY: u16 = 2;
pub(super) const RULE_TABLE: u16 = 1;
pub(super) const RULE_CHAIN: u16 = 2;
pub(super) const RULE_HANDLE: u16 = 3;
pub(super) const RULE_EXPRESSIONS: u16 = 4;
pub(super) const RULE_USERDATA: u16 = 7;
pub(super) const SET_TABLE: u16 = 1;
pub(super) const SET_NAME: u16 = 2;
pub(super) const SET_FLAGS: u16 = 3;
pub(super) const SET_KEY_TYPE: u16 = 4;
pub(super) const SET_KEY_LEN: u16 = 5;
pub(super) const SET_DATA_TYPE: u16 = 6;
pub(super) const SET_DATA_LEN: u16 = 7;
pub(super) const SET_ID: u16 = 10;
pub(super) const SET_USERDATA: u16 = 13;
pub(super) const SET_EXPR: u16 = 17;
pub(super) const FLOWTABLE_TABLE: u16 = 1;
pub(super) const FLOWTABLE_NAME: u16 = 2;
pub(super) const FLOWTABLE_HOOK: u16 = 3;
pub(super) const FLOWTABLE_HOOK_NUMBER: u16 = 1;
pub(super) const FLOWTABLE_HOOK_PRIORITY: u16 = 2;
pub(super) const FLOWTABLE_HOOK_DEVICES: u16 = 3;
pub(super) const DEVICE_NAME: u16 = 1;
pub(super) const ELEMENTS_TABLE: u16 = 1;
pub(super) const ELEMENTS_SET: u16 = 2;
pub(super) const ELEMENTS_LIST: u16 = 3;
pub(super) const ELEMENT_KEY: u16 = 1;
pub(super) const ELEMENT_DATA: u16 = 2;
pub(super) const ELEMENT_FLAGS: u16 = 3;
pub(super) const ELEMENT_TIMEOUT: u16 = 4;
pub(super) const ELEMENT_USERDATA: u16 = 6;
pub(super) const ELEMENT_EXPR: u16 = 7;
pub(super) const DATA_VALUE: u16 = 1;
pub(super) const DATA_VERDICT: u16 = 2;
pub(super) const VERDICT_CODE: u16 = 1;
pub(super) const VERDICT_CHAIN: u16 = 2;
pub(super) const GENERATION_ID: u16 = 1;
pub(super) const GENERATION_PID: u16 = 2;
pub(super) const GENERATION_PROCESS: u16 = 3;
pub(super) const EXPR_NAME: u16 = 1;
pub(super) const EXPR_BODY: u16 = 2;
pub(super) const COUNTER_BYTES: u16 = 1;
pub(super) const COUNTER_PACKETS: u16 = 2;

// Registers are named by what they are for: TO is where a result goes, FROM and KEY are where a value comes from.

pub(super) mod payload {
    pub(in super::super) const TO: u16 = 1;
    pub(in super::super) const BASE: u16 = 2;
    pub(in super::super) const OFFSET: u16 = 3;
    pub(in super::super) const LENGTH: u16 = 4;
}

pub(super) mod meta {
    pub(in super::super) const TO: u16 = 1;
    pub(in super::super) const KEY: u16 = 2;
    pub(in super::super) const FROM: u16 = 3;
}

pub(super) mod ct {
    pub(in super::super) const TO: u16 = 1;
    pub(in super::super) const KEY: u16 = 2;
}

pub(super) mod fib {
    pub(in super::super) const TO: u16 = 1;
    pub(in super::super) const RESULT: u16 = 2;
    pub(in super::super) const FLAGS: u16 = 3;
}

pub(super) mod numgen {
    pub(in super::super) const TO: u16 = 1;
    pub(in super::super) const MODULUS: u16 = 2;
    pub(in super::super) const TYPE: u16 = 3;
    pub(in super::super) const OFFSET: u16 = 4;
}

pub(super) mod cmp {
    pub(in super::super) const FROM: u16 = 1;
    pub(in super::super) const OP: u16 = 2;
    pub(in super::super) const DATA: u16 = 3;
}

pub(super) mod bitwise {
    pub(in super::super) const FROM: u16 = 1;
    pub(in super::super) const TO: u16 = 2;
    pub(in super::super) const LENGTH: u16 = 3;
    pub(in super::super) const MASK: u16 = 4;
    pub(in super::super) const XOR: u16 = 5;
}

pub(super) mod immediate {
    pub(in super::super) const TO: u16 = 1;
    pub(in super::super) const DATA: u16 = 2;
}

pub(super) mod lookup {
    pub(in super::super) const SET: u16 = 1;
    pub(in super::super) const KEY: u16 = 2;
    pub(in super::super) const TO: u16 = 3;
    pub(in super::super) const FLAGS: u16 = 5;
}

pub(super) mod nat {
    pub(in super::super) const TYPE: u16 = 1;
    pub(in super::super) const FAMILY: u16 = 2;
    pub(in super::super) const ADDRESS: u16 = 3;
    pub(in super::super) const LAST_ADDRESS: u16 = 4;
    pub(in super::super) const PORT: u16 = 5;
    pub(in super::super) const LAST_PORT: u16 = 6;
}

pub(super) mod masq {
    pub(in super::super) const FLAGS: u16 = 1;
    pub(in super::super) const PORT: u16 = 2;
}

pub(super) mod reject {
    pub(in super::super) const TYPE: u16 = 1;
    pub(in super::super) const ICMP_CODE: u16 = 2;
}

pub(super) mod byteorder {
    pub(in super::super) const FROM: u16 = 1;
    pub(in super::super) const TO: u16 = 2;
    pub(in super::super) const OP: u16 = 3;
    pub(in super::super) const LENGTH: u16 = 4;
    pub(in super::super) const SIZE: u16 = 5;
}

pub(super) mod flow {
    pub(in super::super) const TABLE: u16 = 1;
}

pub(super) mod dynset {
    pub(in super::super) const SET: u16 = 1;
    pub(in super::super) const OP: u16 = 3;
    pub(in super::super) const KEY: u16 = 4;
    pub(in super::super) const DATA: u16 = 5;
    pub(in super::super) const TIMEOUT: u16 = 6;
    pub(in super::super) const EXPR: u16 = 7;
}
