"""Phrasings of questions as people type them: by kind, with some kept back for evaluation.

`QUESTIONS` of `questions.py` are what the shipped reader was trained with, and stay as they are. These here are richer, and
drawings use them by `say`: terse and polite ones, commands, misspelt ones, and several words for the same thing.
Phrasings in `held_out`, and things in `HELD_OUT_FRAMES`, are never used in training.
"""

import random
import re
from dataclasses import dataclass, field
from functools import lru_cache

from arr_coc.training.documents import questions
from arr_coc.training.documents.page import PageQuestion
from arr_coc.training.documents.questions import NOT_FOUND

FRAMES = (
    *questions.FRAMES,
    *questions._split(
        "whats the {thing} | what is the {thing} | Could you please tell me the {thing}? | Do you know the {thing}? | "
        "Can you find the {thing} for me? | Get the {thing} | What {thing} does it show? | {thing}?? | "
        "Where does it say the {thing}? | Is there a {thing}, and what is it? | i need the {thing} pls | "
        "Which is the {thing}? | What would be the {thing}? | Look for the {thing} | Copy the {thing}. | "
        "Transcribe the {thing}."
    ),
)
HELD_OUT_FRAMES = questions._split(
    "Find the {thing}. | Let me know the {thing}. | I'd like the {thing}. | Report the {thing}. | "
    "What have we got as the {thing}? | Point me to the {thing}. | my question is: what is the {thing}"
)


@dataclass(frozen=True)
class Phrasings:
    """Phrasings of one kind: `asked` and `held_out` are whole questions, `things` are named in a frame."""

    things: tuple[str, ...]
    asked: tuple[str, ...]
    held_out: tuple[str, ...]


def _of(things: str = "", asked: str = "", held_out: str = "") -> Phrasings:
    return Phrasings(*(questions._split(one) if one else () for one in (things, asked, held_out)))


def _grown(kind: str, asked: str = "", held_out: str = "", things: str = "") -> Phrasings:
    """The phrasings of `questions.py` for this kind, and more."""
    more = _of(things, asked, held_out)
    return Phrasings(
        (*questions.THINGS.get(kind, ()), *more.things),
        (questions.PLAIN[kind], *questions.QUESTIONS[kind], *more.asked),
        (*questions.HELD_OUT[kind], *more.held_out),
    )


_PAPERS = {
    "total": _grown(
        "total",
        "total? | how much | What do we have to transfer? | how much in total pls | What's the damage? | total pls",
        "What will this set me back? | how much all together",
        "invoice total | gross amount | total including tax | balance due",
    ),
    "date": _grown("date", "when | date pls | when was that? | What is today's date on it?", "which day is it from"),
    "company": _grown(
        "company",
        "Who sent this? | Who sent the bill? | who is it from | Who do I have to pay? | from whom is this? | "
        "Who wrote this invoice? | Which firm wants the money?",
        "Who wants to be paid? | Which business sent it?",
        "sender | supplier | company that sent it",
    ),
    "address": _grown(
        "address", "where is that | where are they | What street is the company in?", "where do they sit?"
    ),
    "price": _grown(
        "price",
        "how much for {item} | cost of {item}? | what's {item} going for? | Whats the price for {item}? | "
        "unit price of {item}? | What is the unit price of {item}? | How much is one {item}? | {item} costs how much?",
        "How expensive is {item}? | at what price is {item} sold?",
    ),
    "field": _grown(
        "field",
        "whats the {key} | {key} pls | Could you tell me the {key}? | Do you see a {key}? | What did they put as {key}? | "
        "What is entered for {key}? | Is there a {key}? Which? | Look for the {key} | Which {key}?",
        "What do we have for {key}? | Report the {key}.",
    ),
    "table": _grown(
        "table",
        "{row} {column}? | what {column} has {row} | In the row {row}, what is the {column}? | {column} {row} | "
        "Which value is in column {column} for {row}? | Read the {column} of {row}.",
        "Where {row} is listed, what is the {column}? | Find {row} and give its {column}.",
    ),
    "notice": _grown("notice", "what's in {which} | the {which} words?", "Which sentence is in {which}?"),
    "colour": _grown(
        "colour",
        "What color are the words {words}? | {words}: which colour? | Is {words} red or blue or what? | "
        "Name the colour of {words}. | the color of {words} | What is the colour of the text {words}? | "
        "Which colour do the letters of {words} have? | Give the colour of {words}",
        "How is {words} coloured?",
    ),
    "sign": _grown(
        "sign",
        "what's written there | Can you read it? | Please read this to me. | Which words are on the sign? | "
        "Read what it says | what does that say",
        "Which text is printed on it?",
    ),
    "heading": _grown(
        "heading",
        "title? | What is written at the top? | What heading does the page have? | whats the title | "
        "What is the title of this page? | Which words are the headline? | How is the page headed? | What's it titled?",
        "Under which title is it?",
        "page title | main heading",
    ),
    "invoice number": _of(
        "invoice number | invoice no | invoice no. | inv no | invoice # | number of the invoice | bill number | "
        "document number | invoice ID",
        "Which invoice is this? | What number does this invoice have? | invoice number? | inv nr? | "
        "How is the invoice numbered? | Under which number was it issued?",
        "What's the number on this bill? | Which number identifies the invoice?",
    ),
    "due date": _of(
        "due date | payment deadline | date by which to pay | last day to pay | date due",
        "When is it due? | By when do I have to pay? | When must it be paid? | until when can i pay | due when? | "
        "When does payment have to arrive? | How long do I have to pay? | When is payment due?",
        "What's the latest I can pay this? | pay by when?",
    ),
    "buyer": _of(
        "customer | buyer | name of the customer | recipient of the invoice | billed company | client | payer",
        "Who is billed? | Who is this invoice for? | Who has to pay? | To whom is it addressed? | bill to whom? | "
        "Who is the customer? | Who bought this? | Whom was it sent to? | billed to? | Who gets this bill?",
        "Who is being charged? | Whose bill is this to pay?",
    ),
    "buyer address": _of(
        "customer's address | billing address | address of the customer | buyer's address | address of the client",
        "Where does the customer live? | Where is the buyer located? | Where was the bill sent? | bill to address? | "
        "Where is the customer? | What is the address under bill to?",
        "At which address is the customer?",
    ),
    "subtotal": _of(
        "subtotal | net amount | amount before tax | total before tax | sum without VAT | net total",
        "How much is it before tax? | What is the sum without tax? | subtotal? | How much without VAT? | "
        "What do the items add up to before tax?",
        "What's the price excluding tax?",
    ),
    "tax": _of(
        "VAT | tax | tax amount | VAT amount | sales tax | amount of tax | value added tax",
        "How much tax is on it? | How much VAT is included? | How much is the VAT? | How much of it is tax? | tax? | vat? | "
        "What do I pay in taxes?",
        "How much goes to the tax office? | What's the tax on this?",
    ),
    "tax rate": _of(
        "tax rate | VAT rate | VAT percentage | rate of tax | percentage of tax",
        "How many percent VAT? | What percentage is the tax? | At which rate is it taxed? | vat %? | "
        "How high is the tax rate?",
        "Which tax percentage was used?",
    ),
    "discount": _of(
        "discount | rebate | price reduction | amount of the discount",
        "How much was taken off? | How much discount did they get? | discount? | How much do I save?",
        "What was deducted?",
    ),
    "shipping": _of(
        "shipping cost | shipping | delivery charge | postage | freight",
        "How much is the delivery? | What does shipping cost? | How much is charged for delivery? | shipping?",
        "What do they take for sending it?",
    ),
    "quantity": _of(
        "",
        "How many {item} were ordered? | quantity of {item}? | How many {item}? | What is the quantity of {item}? | "
        "How many pieces of {item}? | qty {item} | How often is {item} on the bill? | number of {item} | "
        "How many units of {item} are there? | {item}: how many? | how many {item} did they buy | "
        "Give me the quantity for {item}. | Which quantity of {item} is listed?",
        "What count is given for {item}? | In what number was {item} bought?",
    ),
    "amount": _of(
        "",
        "What is the amount for {item}? | How much is {item} in total? | line total of {item}? | amount of {item} | "
        "What do all the {item} cost together? | What does {item} add to the bill? | {item} total? | "
        "What is the sum for {item}? | How much was charged for {item} altogether? | total for {item} | "
        "What is the line amount of {item}? | Give the amount of {item}.",
        "What did {item} come to? | How much of the bill is {item}?",
    ),
    "IBAN": _of(
        "IBAN | bank account | account number | account to pay to | bank account number",
        "Where do I send the money? | To which account should I pay? | iban? | Which account do they have? | "
        "Into which bank account does it go?",
        "What's the account to transfer it to?",
    ),
    "bank": _of(
        "bank | name of the bank | bank name | seller's bank",
        "Which bank do they use? | At which bank is the account? | bank? | What bank is it?",
        "Who keeps their account?",
    ),
    "BIC": _of(
        "BIC | SWIFT code | BIC code | SWIFT",
        "bic? | What is the bank's code? | Which BIC does the bank have?",
        "What is the swift number?",
    ),
    "reference": _of(
        "reference | payment reference | reference number | purpose of payment | reference to quote",
        "What should I write as reference? | ref? | What do I quote when I pay? | Which reference is given?",
        "What goes into the reference line?",
    ),
    "tax number": _of(
        "VAT number | tax ID | VAT ID | tax number | VAT registration number",
        "Which tax number does the seller have? | vat id? | What is their VAT number?",
        "Under which tax number are they registered?",
    ),
    "order number": _of(
        "order number | order no | purchase order | PO number | number of the order",
        "Which order is this for? | po? | Which order does it belong to?",
        "What is the order called by number?",
    ),
    "terms": _of(
        "payment terms | terms of payment | terms | conditions of payment",
        "What are the payment terms? | How is it to be paid? | On which terms do I pay? | terms?",
        "Under what conditions is it paid?",
    ),
    "phone": _of(
        "phone number | telephone number | phone | number to call | tel",
        "How can I call them? | Which number do I call? | phone? | What is their number? | At which number can I reach them?",
        "What do I dial?",
    ),
    "email": _of(
        "email | email address | e-mail | mail address",
        "How can I write to them? | mail? | What is their email? | Where can I send a mail?",
        "Which address do I mail?",
    ),
    "website": _of(
        "website | web address | homepage | URL",
        "What is their website? | Where are they on the web? | url? | Which site is given?",
        "Where do I find them online?",
    ),
}

_TICKETS_AND_LETTERS = {
    "payee": _of(
        "payee | recipient of the money | beneficiary | name of the payee | person who gets the money",
        "Who gets the money? | Who is paid? | To whom was it transferred? | Who received the transfer? | paid to? | "
        "Whose account does it go to? | Who is the beneficiary?",
        "Into whose hands does it go?",
    ),
    "payer": _of(
        "payer | account holder | name of the payer | person who pays | sender of the money",
        "Who pays? | Who made the transfer? | From whose account is it? | Who sends the money? | paid by?",
        "Whose money is it?",
    ),
    "transfer amount": _of(
        "amount | transferred amount | amount of the transfer | sum transferred | paid amount",
        "How much is transferred? | How much money was sent? | How much was paid in? | amount? | how much was it | "
        "What sum is on the slip?",
        "What sum changes hands?",
    ),
    "balance": _of(
        "balance | new balance | account balance | balance after the payment",
        "How much is left in the account? | What is the balance now? | balance? | how much money do i have left | "
        "What remains after this?",
        "What does the account still hold?",
    ),
    "day": _of(
        "date | day | printed date | date on it",
        "What is the date? | Which day is it? | Which date is given? | date? | What date is printed? | when is it | "
        "From which day is it? | How is it dated?",
        "Which calendar day is meant?",
    ),
    "begin": _of(
        "starting time | time it starts | beginning | start",
        "When does it start? | At what time does it begin? | start? | When do the doors open? | what time is it on",
        "At which hour does the show open?",
    ),
    "passenger": _of(
        "passenger | name of the passenger | traveller | name on the ticket",
        "Who travels? | Whose ticket is this? | Who is the ticket for? | passenger? | Who flies? | On whose name is it?",
        "Who goes on this trip?",
    ),
    "from": _of(
        "place of departure | starting point | origin | departure station",
        "Where does it start? | Where does the trip begin? | From where does it go? | from? | Where do I get on? | "
        "Where does it leave from?",
        "Which place do they set out from?",
    ),
    "to": _of(
        "destination | place of arrival | final stop | arrival station",
        "Where does it go? | Where does the trip end? | Where to? | destination? | Where do I get off? | Where are they going?",
        "Which place do they end up in?",
    ),
    "departure": _of(
        "departure time | time of departure | departure",
        "When does it leave? | At what time does it depart? | what time do we leave | departure? | When do I have to be there? | "
        "When does the trip start?",
        "At which hour do we set off?",
    ),
    "arrival": _of(
        "arrival time | time of arrival | arrival",
        "When does it arrive? | At what time do we get there? | arrival? | when am i there | When does the trip end?",
        "At which hour are we there?",
    ),
    "seat": _of(
        "seat | seat number | number of the seat | reserved seat",
        "Where do I sit? | Which seat is it? | Which seat do I have? | seat? | what's my seat | Which place is reserved?",
        "Which chair is mine?",
    ),
    "platform": _of(
        "platform | track | platform number",
        "Which platform is it? | From which platform does it leave? | platform? | Which track? | where does my train leave",
        "At which track do I wait?",
    ),
    "gate": _of(
        "gate | gate number | boarding gate",
        "Which gate is it? | At which gate do I board? | gate? | Where do I board? | which gate do i go to",
        "Through which gate do I go?",
    ),
    "ticket price": _of(
        "price | price of the ticket | ticket price | fare | cost of the ticket",
        "How much is the ticket? | What did the ticket cost? | how much was the ticket | fare? | What did they pay for it? | "
        "How much does the trip cost?",
        "What was paid for the ride?",
    ),
    "class": _of(
        "class | travel class | category | ticket class",
        "Which class is it? | In which class do I travel? | class? | Is it first or second class? | What category is the ticket?",
        "Which class did they book?",
    ),
    "event": _of(
        "event | name of the event | title of the show | show",
        "What is the ticket for? | Which event is it? | What is on? | Which show is it? | event? | What do we see there?",
        "What is being performed?",
    ),
    "venue": _of(
        "venue | place of the event | location of the event | hall",
        "Where is the event? | Where does it take place? | venue? | Where do I have to go? | In which hall is it?",
        "At which site is it held?",
    ),
    "ticket number": _of(
        "ticket number | number of the ticket | ticket no | booking code | reference of the ticket",
        "Which number does the ticket have? | ticket no? | What is the booking number? | What is the code of the ticket?",
        "By which number is the ticket known?",
    ),
    "departs": _of(
        "departure time to {place} | time of the train to {place} | time for {place}",
        "When does it leave for {place}? | What time is the train to {place}? | {place}: when? | When can I go to {place}? | "
        "when is the one to {place} | At what time does the {place} one depart? | What's the departure time for {place}?",
        "At what hour can I set off to {place}?",
    ),
    "departs from": _of(
        "platform for {place} | track to {place} | platform of the train to {place}",
        "From which platform does {place} leave? | Which platform for {place}? | {place} platform? | Where does the {place} train stop? | "
        "From which track do I go to {place}?",
        "Where do I wait for {place}?",
    ),
    "goes to": _of(
        "destination at {time} | destination of the {time}",
        "Where does the {time} go? | Where does the one at {time} go to? | {time} to where? | Which place has a departure at {time}? | "
        "What leaves at {time}? | What is the destination of the {time} departure?",
        "Which town does the {time} head for?",
    ),
    "line to": _of(
        "line to {place} | number of the line to {place} | train number to {place}",
        "Which line goes to {place}? | Which train goes to {place}? | {place}: which line? | What do I take to {place}? | "
        "Which number is the one to {place}?",
        "With which one do I reach {place}?",
    ),
    "lesson": _of(
        "subject on {day} at {time} | lesson on {day} at {time} | entry for {day}, {time}",
        "What is on {day} at {time}? | What do we have on {day} at {time}? | {day} {time}? | Which subject is on {day} at {time}? | "
        "what's on {day}, {time} | What happens on {day} at {time}?",
        "Which class do I go to on {day} at {time}?",
    ),
    "sender": _of(
        "sender | author | sender of it | name of the sender",
        "Who sent this? | Who sent it? | From whom is it? | who is this from | sender? | Who posted it?",
        "Whose message is this?",
    ),
    "recipient": _of(
        "recipient | addressee | receiver | name of the recipient",
        "Who is it for? | To whom is it addressed? | Who gets it? | Who is it sent to? | to whom? | Who should receive this? | "
        "Whose name is on it as the receiver?",
        "Who will open this?",
    ),
    "recipient address": _of(
        "recipient's address | delivery address | address of the recipient | address it goes to",
        "Where is it sent? | Where does the recipient live? | To which address does it go? | Where must it be delivered? | ship to?",
        "At whose door does it arrive, and where?",
    ),
    "sender address": _of(
        "sender's address | return address | address of the sender",
        "Where does the sender live? | Where did it come from? | From which address was it sent? | Where do I send it back to?",
        "At which place was it posted?",
    ),
    "subject": _of(
        "subject | subject line | topic | matter | topic of the letter",
        "What is the letter about? | What is the subject? | re? | subject? | What do they write about? | What is it concerning?",
        "Which matter do they raise?",
    ),
    "signed by": _of(
        "signature | name of the signer | person who signed",
        "Who signed it? | Who signed the letter? | signed by? | Whose signature is it? | Which name is below the letter?",
        "Who put their name under it?",
    ),
    "appointment": _of(
        "date of the appointment | day of the meeting | appointment",
        "When is the appointment? | When do they want to meet? | On which day is the meeting? | appointment when? | "
        "When do I have to come? | When is it planned?",
        "Which day should I keep free?",
    ),
    "appointment time": _of(
        "time of the appointment | time of the meeting",
        "At what time is the appointment? | At what time do we meet? | what time is the meeting | When on that day?",
        "At which hour should I be there?",
    ),
    "appointment place": _of(
        "place of the appointment | room of the meeting | meeting place",
        "Where is the appointment? | Where do we meet? | In which room is it? | where is the meeting | Where do I have to go?",
        "To which room am I asked to come?",
    ),
    "person": _of(
        "name | name on the card | person's name | full name",
        "Whose card is this? | Who is this? | What is the person called? | name? | What is their name? | Who gave me this card?",
        "How is this person named?",
    ),
    "job": _of(
        "job title | position | job | profession | role",
        "What does the person do? | What is their job? | What position do they have? | job? | What do they work as?",
        "What is their line of work?",
    ),
    "employer": _of(
        "company | employer | name of the company | firm",
        "Where do they work? | Which company is it? | For whom do they work? | company? | Who employs them?",
        "By which firm are they paid?",
    ),
    "mobile": _of(
        "mobile number | mobile | cell phone number | cell",
        "What is their mobile? | At which mobile number can I reach them? | mobile? | cell? | Where do I send a text message?",
        "Which number rings in their pocket?",
    ),
    "postal address": _of(
        "address | full address | postal address | street address",
        "What is the address? | Which address is given? | address? | In which street is it? | Where can I find them?",
        "Where should a letter be sent?",
    ),
    "tracking number": _of(
        "tracking number | parcel number | shipment number | tracking ID",
        "How can I track it? | What do I track it with? | tracking no? | Which number does the parcel have?",
        "By which number do I follow the parcel?",
    ),
    "weight": _of(
        "weight | net weight | mass | contents by weight",
        "How heavy is it? | How much does it weigh? | weight? | How many grams are in it? | how much is in it",
        "What do the scales show?",
    ),
    "service": _of(
        "service | shipping service | kind of delivery | shipping method",
        "How is it shipped? | Which service is used? | Is it express? | service? | How fast is it sent?",
        "By which kind of post does it travel?",
    ),
    "product": _of(
        "product | name of the product | product name",
        "What is it? | Which product is this? | What is in the package? | product? | What am I holding?",
        "What would I be buying here?",
    ),
    "brand": _of(
        "brand | maker | producer | company that makes it",
        "Who makes it? | Which brand is it? | brand? | From which company is it? | who produces this",
        "Whose product is it?",
    ),
    "best before": _of(
        "best before date | expiry date | use-by date | expiration date",
        "Until when is it good? | When does it expire? | How long can I eat it? | best before? | Is it still good, until when?",
        "On which day does it go bad?",
    ),
    "lot": _of(
        "lot number | batch | batch number | lot",
        "Which lot is it? | Which batch does it come from? | lot? | What is the batch code?",
        "From which production run is it?",
    ),
    "label price": _of(
        "price | price of it | price tag",
        "How much is it? | What does it cost? | price? | how much do i pay for it",
        "What do they ask for it?",
    ),
    "nutrient": _of(
        "{name} | amount of {name} | {name} content",
        "How much {name} does it have? | How much {name} is in it? | {name}? | {name} per 100 g? | What does it say for {name}?",
        "What quantity of {name} would I eat?",
    ),
    "storage": _of(
        "storage instructions | advice on storage | storage",
        "How should I store it? | How is it kept? | storage? | Where do I keep it?",
        "What keeps it fresh?",
    ),
}

_CHARTS = {
    "chart title": _of(
        "title | title of the chart | chart title | heading | caption of the chart",
        "What is the chart about? | What does the chart show? | How is the chart titled? | What is shown here? | title? | "
        "What is this a chart of? | What is plotted?",
        "Which subject does the graph have?",
    ),
    "x axis": _of(
        "label of the x axis | x axis label | horizontal axis label | name of the x axis | title of the horizontal axis",
        "What is on the x axis? | What does the horizontal axis show? | x axis? | What is along the bottom? | "
        "What does the x-axis represent?",
        "Which quantity runs to the right?",
    ),
    "y axis": _of(
        "label of the y axis | y axis label | vertical axis label | name of the y axis | title of the vertical axis",
        "What is on the y axis? | What does the vertical axis show? | y axis? | In which unit are the values? | "
        "What does the y-axis represent? | What is measured?",
        "Which quantity goes upwards?",
    ),
    "value": _of(
        "value of {name} | value for {name} | number for {name} | height of {name}",
        "How much is {name}? | {name}? | What is {name}'s value? | How high is {name}? | What is the value of {name}? | "
        "How large is {name}? | What number does {name} have? | What does the chart say for {name}? | {name} value",
        "Where does {name} stand? | How far does {name} reach?",
    ),
    "series value": _of(
        "value of {series} for {name} | {series} value of {name} | {series} in {name} | number of {series} at {name}",
        "How much is {series} in {name}? | {series}, {name}? | What is {series} for {name}? | How high is {series} at {name}? | "
        "In {name}, how much is {series}? | {name}: {series}? | What was {series} in {name}?",
        "What did {series} reach in {name}? | For {name}, where is {series}?",
    ),
    "largest": _of(
        "largest one | highest one | maximum | biggest one | tallest bar | top one | one with the highest value",
        "Which is the largest? | Which one is highest? | What has the highest value? | Who has the most? | biggest? | max? | "
        "Which has the most? | Where is the peak? | Which comes first? | What is the best one?",
        "Which leads? | What stands out at the top?",
    ),
    "smallest": _of(
        "smallest one | lowest one | minimum | one with the lowest value | shortest bar | least",
        "Which is the smallest? | Which one is lowest? | What has the lowest value? | Who has the least? | smallest? | min? | "
        "Which has the fewest? | Where is the minimum? | Which comes last?",
        "Which is at the bottom? | What falls behind all others?",
    ),
    "legend colour": _of(
        "colour of {series} | color for {series}",
        "Which colour is {series}? | What colour stands for {series}? | What color is {series}? | {series}: colour? | "
        "How is {series} drawn? | In which colour is {series} shown? | Which colour does {series} have in the legend?",
        "By which colour do I recognise {series}?",
    ),
    "legend series": _of(
        "meaning of {colour} | series in {colour}",
        "What does {colour} stand for? | What is shown in {colour}? | What does the {colour} one mean? | {colour} is what? | "
        "Which series is {colour}? | What does the {colour} colour represent? | {colour}?",
        "Who is the {colour} one?",
    ),
    "trend": _of(
        "trend of {series} | development of {series} | tendency of {series}",
        "Does {series} rise or fall? | How does {series} develop? | Is {series} going up? | trend of {series}? | "
        "Is {series} growing? | In which direction does {series} go? | How did {series} change? | "
        "Is {series} increasing or decreasing?",
        "Where is {series} heading? | Up or down: {series}?",
    ),
    "chart kind": _of(
        "kind of chart | type of chart | chart type | sort of diagram",
        "What kind of chart is this? | Is this a bar chart or a line chart? | Which type of plot is it? | "
        "What sort of graph is it?",
        "How are the data drawn?",
    ),
    "share": _of(
        "share of {name} | percentage of {name} | part of {name}",
        "How many percent is {name}? | How big is the share of {name}? | {name} percent? | What percentage is {name}? | "
        "What share does {name} have? | How large is the slice of {name}? | {name}?",
        "Which portion belongs to {name}?",
    ),
}

_SCREENS = {
    "setting": _of(
        "state of {name} | setting of {name} | status of {name} | {name} setting",
        "Is {name} on or off? | Is {name} on? | Is {name} enabled? | {name} on? | Is {name} turned on? | {name}? | "
        "What is {name} set to? | How is {name} set? | Is {name} active? | Did I switch {name} on? | Is {name} checked?",
        "Have I got {name} switched on? | Would {name} be active now?",
    ),
    "option": _of(
        "value of {name} | setting of {name} | choice for {name} | current {name}",
        "What is {name} set to? | Which {name} is selected? | Which {name} is chosen? | {name}? | How is {name} set? | "
        "What did I choose for {name}? | What {name} do I have? | Which value has {name}?",
        "What have I picked as {name}?",
    ),
    "entry": _of(
        "{name} | content of {name} | text in {name} | entry in {name} | value in the field {name}",
        "What is entered as {name}? | What did they type for {name}? | {name}? | What is in the field {name}? | "
        "What does the {name} field contain? | What is filled in for {name}? | Which {name} was entered?",
        "What have they put under {name}?",
    ),
    "message": _of(
        "message | error message | text of the message | error | warning | text of the dialog",
        "What does the message say? | What went wrong? | What is the error? | What does the dialog say? | error? | "
        "Why did it fail? | What happened? | What is the computer telling me? | Which error is shown? | whats the problem",
        "What's the trouble here? | What is it complaining about?",
    ),
    "error code": _of(
        "error code | error number | code of the error | code",
        "Which error code is shown? | code? | What number does the error have? | What is the code in the message?",
        "Which code do I give to support?",
    ),
    "window title": _of(
        "title of the window | window title | title bar | name of the window | name of the program",
        "Which window is this? | Which app is this? | What is the window called? | Which program is open? | app? | "
        "What does the title bar say?",
        "In which program am I?",
    ),
    "buttons": _of(
        "buttons | labels of the buttons | button labels | choices at the bottom",
        "Which buttons are there? | What can I click? | What can I press? | buttons? | What are my choices? | "
        "Which buttons does it have? | What do the buttons say?",
        "What could I click on here?",
    ),
    "main button": _of(
        "highlighted button | main button | default button | coloured button | primary button",
        "Which button is highlighted? | Which button is the default? | What does the coloured button say? | "
        "What do I click to go on? | Which button should I press to confirm?",
        "Which button stands out?",
    ),
    "tab": _of(
        "selected tab | active tab | current tab | open tab | active page | selected menu entry",
        "Which tab is open? | Which tab is selected? | Which tab am I on? | tab? | Which section is open? | "
        "Where am I in the menu?",
        "Which of the tabs is in front?",
    ),
    "file": _of(
        "",
        "What is the {column} of {row}? | {row}: {column}? | {column} of {row} | Which {column} does {row} have? | "
        "For {row}, what is the {column}? | What does it say under {column} for {row}? | {row}, {column} | "
        "Tell me {row}'s {column}. | whats the {column} for {row} | look up the {column} of {row} | "
        "Read the {column} of {row} | Give the {column} of {row}.",
        "What's listed as {column} next to {row}?",
    ),
}

_SCENES = {
    "where": _of(
        "",
        "Where is the {thing_}? | where's the {thing_} | Locate the {thing_} | Where can I see the {thing_}? | {thing_}? | "
        "Where do you see the {thing_}? | Show me the {thing_}. | In which part is the {thing_}? | "
        "Where is the {thing_} in this picture? | position of the {thing_} | Which place is the {thing_} at? | Look at the {thing_}. | Point to the {thing_} | Where did the {thing_} go?",
        "Can you spot the {thing_}? | Whereabouts is the {thing_}? | At what spot is the {thing_}? | My eyes miss the {thing_}, help me.",
    ),
    "where all": _of(
        "",
        "Where are the {things_}? | where are all the {things_} | Show me the {things_}. | Where do you see {things_}? | "
        "Point to all {things_} | In which parts are the {things_}? | Look at the {things_}.",
        "Can you spot all the {things_}?",
    ),
    "object colour": _of(
        "",
        "What colour is the {thing_}? | What color is the {thing_}? | Which colour does the {thing_} have? | "
        "{thing_} colour? | How is the {thing_} coloured? | Is the {thing_} red, blue or what? | color of the {thing_}? | "
        "Tell me which colour the {thing_} is. | Of what colour is the {thing_}? | whats the color of the {thing_}",
        "Describe the colour of the {thing_}. | In which colour is the {thing_} painted?",
    ),
    "count": _of(
        "",
        "How many {things_} are there? | How many {things_}? | how many {things_} do you see | Count the {things_}. | "
        "{things_}: how many? | What is the number of {things_}? | How many {things_} can you count? | "
        "How many {things_} are in the picture? | Number of {things_}? | count {things_}",
        "What's the tally of {things_}? | Give a figure for the {things_} you see.",
    ),
    "is there": _of(
        "",
        "Is there {a_thing}? | Do you see {a_thing}? | Can you see {a_thing}? | Is {a_thing} in the picture? | "
        "Does the picture show {a_thing}? | {a_thing}? | any {things_}? | Are there any {things_}? | Is {a_thing} there? | "
        "Is {a_thing} visible? | Do we have {a_thing} here? | Is there {a_thing} in the image?",
        "Has it got {a_thing} in it? | Would you say there is {a_thing}?",
    ),
    "relation": _of(
        "",
        "What is {relation} the {thing_}? | What do you see {relation} the {thing_}? | {relation} the {thing_}? | "
        "Which object is {relation} the {thing_}? | What stands {relation} the {thing_}? | what's {relation} the {thing_} | "
        "Which thing is {relation} the {thing_}? | Name the object {relation} the {thing_}. | "
        "What can be seen {relation} the {thing_}? | Tell me what is {relation} the {thing_}. | "
        "Is there something {relation} the {thing_}? | What is it that is {relation} the {thing_}?",
        "Looking {relation} the {thing_}, what do I find?",
    ),
    "coloured": _of(
        "",
        "What is {colour}? | Which object is {colour}? | Which thing is {colour}? | What do you see in {colour}? | "
        "What is the {colour} thing? | {colour} object? | Name the {colour} object. | What is painted {colour}?",
        "What has the colour {colour}? | Which of these would you call {colour}?",
    ),
    "biggest": _of(
        "biggest object | largest thing | largest object",
        "What is the biggest thing? | Which object is largest? | What is largest in the picture? | biggest? | "
        "Which is the biggest object?",
        "What takes up the most room?",
    ),
    "sign text": _of(
        "text on the {thing_} | words on the {thing_} | writing on the {thing_}",
        "What does the {thing_} say? | What is written on the {thing_}? | Read the {thing_}. | {thing_} text? | "
        "Which words are on the {thing_}? | What can I read on the {thing_}?",
        "What's printed on the {thing_}?",
    ),
    "clock": _of(
        "time | time on the clock | time shown",
        "What time is it? | What does the clock show? | What time does the clock say? | How late is it? | time?",
        "Which hour is it?",
    ),
}

_WHOLE = {
    "whole": _of(
        "contents of this picture | gist of it | main content | summary",
        "Describe this. | What is this document about? | Summarise the page. | What is this? | What do you see? | "
        "Describe the picture. | Describe the image in detail. | What's in this image? | Summarize this. | "
        "What is shown here? | Give me an overview. | Tell me about this picture. | What can you see here? | "
        "Explain this to me. | what is this about | describe pls | What does this picture show? | Read everything. | "
        "What kind of document is this? | Caption this image. | tl;dr | What is going on here? | Transcribe the whole page. | "
        "What information is on this page?",
        "Put this in a few words. | Walk me through this page. | What are we looking at? | Sum it up.",
    ),
}

PHRASINGS: dict[str, Phrasings] = {**_PAPERS, **_TICKETS_AND_LETTERS, **_CHARTS, **_SCREENS, **_SCENES, **_WHOLE}

# Other words for what forms and tickets call something else, so that a question need not repeat the printed word.
SYNONYMS: dict[str, tuple[str, ...]] = {
    key: questions._split(words)
    for key, words in (
        ("amount due", "amount to pay | balance due | open amount"),
        ("arrival", "arrival time | time of arrival"),
        ("booking code", "booking reference | reservation code"),
        ("carrier", "shipping company | transport company"),
        ("check-in", "check-in time | time of check-in"),
        ("contact", "contact person | person to contact"),
        ("customer", "client | customer's name"),
        ("date of birth", "birth date | birthday"),
        ("deliver to", "delivery address | address of delivery"),
        ("delivery date", "date of delivery | day of delivery"),
        ("departure", "departure time | time of departure"),
        ("destination", "place to go | final destination"),
        ("employer", "name of the employer | company somebody works for"),
        ("expiry date", "expiration date | last valid day"),
        ("floor", "floor number | storey"),
        ("from", "place of departure | starting point"),
        ("gate", "gate number | boarding gate"),
        ("issue date", "date of issue | day it was issued"),
        ("job", "job title | position | profession"),
        ("manager", "manager's name | person in charge"),
        ("mobile", "mobile number | cell phone"),
        ("name", "full name | person's name"),
        ("passenger", "passenger's name | traveller | name of the passenger"),
        ("patient", "patient's name | name of the patient"),
        ("platform", "platform number | track"),
        ("policy number", "insurance number | number of the policy"),
        ("recipient", "receiver | payee | addressee"),
        ("room", "room number | number of the room"),
        ("seat", "seat number | place to sit"),
        ("sender", "writer | person who sent it"),
        ("serial number", "serial no | S/N"),
        ("signed by", "signature | person who signed"),
        ("status", "current status | state"),
        ("subject", "subject line | topic | matter"),
        ("supplier", "vendor | seller"),
        ("ticket number", "ticket no | number of the ticket"),
        ("to", "place of arrival | destination"),
        ("tracking number", "parcel number | shipment number"),
        ("valid until", "expiry date | last day of validity"),
        ("weight", "mass | weight in all"),
    )
}

_SLOT = re.compile(r"(\{\w+\})")


def _shape(phrasing: str) -> str:
    """A normalized phrasing, whatever its slots are called."""
    return _SLOT.sub("{}", questions.normalize_phrasing(phrasing))


@lru_cache(maxsize=1)
def _kept_back() -> frozenset[str]:
    """The phrasings that any kind keeps back: the words of one kind's exam may be another kind's question, too."""
    return frozenset(_shape(phrasing) for kind in PHRASINGS for part in templates(kind, True) for phrasing in part)


@lru_cache(maxsize=256)
def templates(kind: str, held_out: bool = False) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """All phrasings of a kind with open slots: whole questions, and things in frames."""
    one = PHRASINGS[kind]
    frames = HELD_OUT_FRAMES if held_out else FRAMES
    framed = tuple(frame.replace("{thing}", thing) for thing in one.things for frame in frames)
    if held_out:
        return one.held_out, framed

    def trained(phrasings: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(one for one in phrasings if _shape(one) not in _kept_back())

    return trained(one.asked), trained(framed)


def misspell(rng: random.Random, word: str) -> str:
    """The word with one typing error: two letters swapped, one left out, doubled, or replaced by its neighbour."""
    if len(word) < 4 or not word.isalpha():
        return word
    at = rng.randrange(1, len(word) - 1)
    style = rng.random()
    if style < 0.35:
        return word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    if style < 0.65:
        return word[:at] + word[at + 1 :]
    if style < 0.85:
        return word[:at] + word[at] + word[at:]
    row = next(row for row in ("qwertyuiop", "asdfghjkl", "zxcvbnm") if word[at].lower() in row)
    beside = row[(row.index(word[at].lower()) + 1) % len(row)]
    return word[:at] + beside + word[at + 1 :]


def _typed(rng: random.Random, template: str) -> str:
    """The template as typed in a hurry: lower case, no punctuation, a greeting, a misspelt word."""
    style = rng.random()
    if style < 0.25:
        return template.lower()
    if style < 0.45:
        return template.rstrip("?.").lower()
    if style < 0.55:
        return template.rstrip("?.")
    if style < 0.65:
        return rng.choice(("Please: {}", "Hi, {}", "Hello! {}", "Quick question: {}", "{} Thanks!", "{} pls")).replace(
            "{}", template
        )
    if style < 0.7:
        return "".join(part if _SLOT.fullmatch(part) else part.upper() for part in _SLOT.split(template))
    parts = _SLOT.split(template)
    at = rng.randrange(0, len(parts), 2)  # text between slots
    words = parts[at].split(" ")
    longest = max(range(len(words)), key=lambda i: (len(words[i]), rng.random()))
    words[longest] = misspell(rng, words[longest])
    parts[at] = " ".join(words)
    return "".join(parts)


def say(rng: random.Random, kind: str, held_out: bool = False, literal: bool = False, **slots: object) -> str:
    """A question of `kind`, as a person types it, with its slots (`item`, `name`, ...) filled.

    `literal`: a field is asked for by its printed name, not by another word for it.
    """
    filled = {name: str(value) for name, value in slots.items()}
    if kind == "field" and not literal:
        key = filled["key"].lower()
        if key in PHRASINGS and rng.random() < 0.5:
            kind = key
        elif key in SYNONYMS and rng.random() < 0.3:
            filled["key"] = rng.choice(SYNONYMS[key])
    asked, framed = templates(kind, held_out)
    template = rng.choice(framed if framed and (not asked or rng.random() < 0.4) else asked)
    if rng.random() < 0.5 and not template.startswith("{"):
        template = template[0].upper() + template[1:]
    if rng.random() < 0.25:
        template = _typed(rng, template)
        if rng.random() < 0.4:
            filled = {name: value.lower() for name, value in filled.items()}
    return template.format(**filled)


@dataclass
class Asker:
    """Collects the questions about one page, each in a random phrasing."""

    rng: random.Random
    held_out: bool
    questions: list[PageQuestion] = field(default_factory=list)

    def ask(
        self, kind: str, answer: str, evidence: tuple[int, ...], others: tuple[tuple[int, ...], ...] = (), **slots: str
    ) -> None:
        """A question whose answer the lines in `evidence` give, or those of any of `others`."""
        asked = say(self.rng, kind, self.held_out, literal=False, **slots)
        self.questions.append(PageQuestion(kind, asked, answer, evidence, others, tuple(slots.items())))

    def ask_absent(self, kind: str, answer: str = NOT_FOUND, **slots: str) -> None:
        """A question about something that is not on the page."""
        asked = say(self.rng, kind, self.held_out, literal=False, **slots)
        self.questions.append(PageQuestion(kind, asked, answer, slots=tuple(slots.items()), absent=True))
