-- The new database, as its team wants it. The sink asks for two more columns, which go when the old database does:
--     alter table customers drop column _lsn, drop column _seq;

create table customers (
    id          int primary key,
    first_name  text not null,
    last_name   text not null,
    vip         boolean not null,
    since       timestamptz not null,
    _lsn        bigint not null default 0,
    _seq        int not null default 0
);

create table addresses (
    customer_id  int primary key,
    line         text not null,
    postcode     char(5) not null,
    city         text not null,
    _lsn         bigint not null default 0,
    _seq         int not null default 0
);

create table orders (
    id           bigint primary key,
    customer_id  int not null,
    total        numeric(12, 2) not null,
    state        text not null check (state in ('new', 'paid', 'sent')),
    ordered_at   timestamptz not null,
    _lsn         bigint not null default 0,
    _seq         int not null default 0
);

create index on orders (customer_id);
