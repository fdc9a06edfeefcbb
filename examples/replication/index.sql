-- The index: a PostgreSQL of its own. Documents are made from copies of the two tables.

create schema copies;

create table copies.customers (
    id    int primary key,
    name  text,
    city  text,
    _lsn  bigint not null default 0,  -- where in its log a row's state is from: the sink asks for these two
    _seq  int not null default 0
);

create table copies.orders (
    id           int primary key,
    customer_id  int,
    item         text,
    amount       numeric(10, 2),
    _lsn         bigint not null default 0,
    _seq         int not null default 0
);

create index on copies.orders (customer_id);

create table documents (
    id     int primary key,
    body   jsonb not null,
    words  tsvector generated always as (to_tsvector('simple', body)) stored
);

create index on documents using gin (words);
